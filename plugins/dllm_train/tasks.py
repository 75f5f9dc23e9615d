"""Short exact tasks with checkable answers: the text that the model inside is trained and judged on.

Every task is a function `random.Random -> (prompt, answer)`. Which prompts are held out is decided by a
hash of the prompt alone, so training and judging can never disagree about it.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable

from . import words

Example = tuple[str, str]

# The prompts that the documentation shows are always held out: the model has never seen them.
SHOWN = {
    "What is 217 + 384?",
    "What is 904 - 167?",
    "Sort 41 7 93 22",
    "Reverse the word garden.",
    "What is the capital of Norway?",
    "Which day comes after Tuesday?",
    "Extract: Anna is a 31 year old baker from Oslo.",
}


def is_held_out(prompt: str) -> bool:
    """Whether training must never see `prompt` (about one in eight)."""
    return prompt in SHOWN or zlib.crc32(prompt.encode()) % 8 == 0


def _number(r: random.Random, limit: int = 999) -> int:
    digits = r.choices((1, 2, 3), (1, 2, 5))[0]
    return r.randrange(min(10**digits, limit + 1))


def _operands(r: random.Random) -> tuple[int, int]:
    """Two numbers of about the same size; small ones often enough that the digit tables are learned early."""
    limit = 10 ** r.choices((1, 2, 3), (2, 3, 5))[0]
    return r.randrange(limit), r.randrange(limit)


def add(r: random.Random) -> Example:
    a, b = _operands(r)
    if a + b > 999:
        a, b = 999 - a, 999 - b  # now at most 998
    wording = r.choice(
        ["What is {a} + {b}?", "{a} + {b} =", "Add {a} and {b}.", "Compute {a} + {b}.", "How much is {a} plus {b}?"]
    )
    return wording.format(a=a, b=b), str(a + b)


def subtract(r: random.Random) -> Example:
    a, b = sorted(_operands(r), reverse=True)
    wording = r.choice(
        [
            "What is {a} - {b}?",
            "{a} - {b} =",
            "Subtract {b} from {a}.",
            "Compute {a} - {b}.",
            "How much is {a} minus {b}?",
        ]
    )
    return wording.format(a=a, b=b), str(a - b)


def sort(r: random.Random) -> Example:
    numbers = r.sample(range(1, 100), r.randint(3, 4))
    text = " ".join(map(str, numbers))
    wording = r.choice(
        ["Sort {}", "Sort {}.", "Put {} in order.", "Sort these numbers: {}", "Order {} from small to large."]
    )
    return wording.format(text), " ".join(map(str, sorted(numbers)))


def count(r: random.Random) -> Example:
    start = r.randint(0, 91)
    stop = start + r.randint(2, 7)
    wording = r.choice(
        ["Count from {} to {}.", "Count from {} up to {}.", "List the numbers from {} to {}.", "Count: {} to {}"]
    )
    return wording.format(start, stop), " ".join(map(str, range(start, stop + 1)))


def _spelled(r: random.Random) -> str:
    """A word that the tokenizer has to spell: from the list, or made of syllables."""
    if r.random() < 0.4:
        return r.choice(words.SPELLING)
    syllables = ["".join((r.choice("bcdfghjklmnprstvwz"), r.choice("aeiou"))) for _ in range(r.randint(1, 3))]
    return "".join(syllables) + r.choice("bdfgklmnprstxyz")


def reverse(r: random.Random) -> Example:
    word = _spelled(r)
    wording = r.choice(["Reverse the word {}.", "Spell {} backwards.", "Reverse: {}", "Write {} in reverse."])
    return wording.format(word), word[::-1]


def upper(r: random.Random) -> Example:
    word = _spelled(r)
    wording = r.choice(["Write {} in capitals.", "Upper case: {}", "Put {} in upper case.", "Make {} upper case."])
    return wording.format(word), word.upper()


def repeat(r: random.Random) -> Example:
    text = _spelled(r) if r.random() < 0.5 else str(_number(r))
    wording = r.choice(["Repeat: {}", "Say {} again.", "Repeat {} once.", "Echo {}."])
    return wording.format(text), text


def day(r: random.Random) -> Example:
    i = r.randrange(7)
    step, wording = r.choice(
        [
            (1, "Which day comes after {}?"),
            (1, "What day follows {}?"),
            (1, "Name the day after {}."),
            (1, "Today is {}. What day is tomorrow?"),
            (1, "The next day after {} is"),
            (1, "What comes after {}?"),
            (1, "Tomorrow of {}?"),
            (-1, "Which day comes before {}?"),
            (-1, "What day precedes {}?"),
            (-1, "Name the day before {}."),
            (-1, "Today is {}. What day was yesterday?"),
            (-1, "What comes before {}?"),
            (-1, "Yesterday of {}?"),
            (2, "Which day is two days after {}?"),
            (2, "Today is {}. What day is it in two days?"),
        ]
    )
    return wording.format(words.DAYS[i]), words.DAYS[(i + step) % 7]


def month(r: random.Random) -> Example:
    i = r.randrange(12)
    step, wording = r.choice(
        [
            (1, "Which month comes after {}?"),
            (1, "What month follows {}?"),
            (1, "Name the month after {}."),
            (1, "It is {}. What month is next?"),
            (1, "The next month after {} is"),
            (1, "What comes after {}?"),
            (-1, "Which month comes before {}?"),
            (-1, "What month precedes {}?"),
            (-1, "Name the month before {}."),
            (-1, "It is {}. What month was the last?"),
            (-1, "What comes before {}?"),
        ]
    )
    return wording.format(words.MONTHS[i]), words.MONTHS[(i + step) % 12]


def capital(r: random.Random) -> Example:
    country, city = r.choice(list(words.CAPITALS.items()))
    forwards = [
        "What is the capital of {}?",
        "Name the capital of {}.",
        "The capital of {} is",
        "Which city is the capital of {}?",
        "Capital of {}?",
        "Tell me the capital of {}.",
    ]
    backwards = ["{} is the capital of which country?", "Which country has the capital {}?", "{} is the capital of"]
    if r.random() < 0.7:
        return r.choice(forwards).format(country), city
    return r.choice(backwards).format(city), country


def extract(r: random.Random) -> Example:
    name, job, city = r.choice(words.NAMES), r.choice(words.JOBS), r.choice(words.CITIES)
    age = r.randint(18, 79)
    wording = r.choice(
        [
            "Extract: {name} is a {age} year old {job} from {city}.",
            "Extract: {name}, {age}, works as a {job} in {city}.",
            "Make JSON: {name} is a {job} from {city}, {age} years old.",
            "Extract: the {job} {name} from {city} is {age}.",
        ]
    )
    answer = json.dumps({"name": name, "age": age, "job": job, "city": city})
    return wording.format(name=name, age=age, job=job, city=city), answer


def function(r: random.Random) -> Example:
    name, (arity, body) = r.choice(list(words.FUNCTIONS.items()))
    arguments = r.sample(words.ARGUMENTS, arity)
    head = f"def {name}({', '.join(arguments)}):"
    wording = r.choice(["Complete: {}", "Complete the function {}", "Write the body of {}", "Finish this: {}"])
    return wording.format(head), body.format(*arguments)


def story(r: random.Random) -> Example:
    name, colour, animal, place = (
        r.choice(words.NAMES),
        r.choice(words.COLOURS),
        r.choice(words.ANIMALS),
        r.choice(words.PLACES),
    )
    wording, text = r.choice(
        [
            (
                "Tell a story about {name} and a {colour} {animal} in the {place}.",
                "One day {name} went to the {place}. There {name} met a {colour} {animal}. They became friends.",
            ),
            (
                "Write a story: {name}, {place}, {colour} {animal}.",
                "{name} lived near the {place}. Every night a {colour} {animal} came to visit. {name} was happy.",
            ),
            (
                "Tell how {name} lost a {colour} {animal} at the {place}.",
                "{name} had a {colour} {animal}. It ran away to the {place}. {name} found the {animal} and went home.",
            ),
        ]
    )
    values = {"name": name, "colour": colour, "animal": animal, "place": place}
    return wording.format(**values), text.format(**values)


TASKS: dict[str, Callable[[random.Random], Example]] = {
    f.__name__: f
    for f in (add, subtract, sort, count, reverse, upper, repeat, day, month, capital, extract, function, story)
}


def sample(task: str, r: random.Random, held_out: bool = False) -> Example:
    """One example of `task` from the training side, or from the held-out side."""
    while True:
        example = TASKS[task](r)
        if is_held_out(example[0]) == held_out:
            return example


def held_out_set(per_task: int = 50, seed: int = 20261129) -> list[dict[str, str]]:
    """The fixed judging set: up to `per_task` different held-out prompts of each task."""
    rows = []
    for task in TASKS:
        r = random.Random(f"{seed}-{task}")
        seen: dict[str, str] = {}
        for _ in range(per_task * 40):
            if len(seen) == per_task:
                break
            prompt, answer = sample(task, r, held_out=True)
            seen.setdefault(prompt, answer)
        rows += [{"task": task, "prompt": p, "answer": a} for p, a in sorted(seen.items())]
    return rows
