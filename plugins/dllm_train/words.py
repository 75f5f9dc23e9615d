"""The closed lists that the tasks draw from. Plain data, no logic."""

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]

CAPITALS = {
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
    "Iceland": "Reykjavik",
    "France": "Paris",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Italy": "Rome",
    "Greece": "Athens",
    "Germany": "Berlin",
    "Austria": "Vienna",
    "Switzerland": "Bern",
    "Belgium": "Brussels",
    "Netherlands": "Amsterdam",
    "Ireland": "Dublin",
    "Poland": "Warsaw",
    "Hungary": "Budapest",
    "Romania": "Bucharest",
    "Bulgaria": "Sofia",
    "Ukraine": "Kyiv",
    "Turkey": "Ankara",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Ghana": "Accra",
    "Morocco": "Rabat",
    "Japan": "Tokyo",
    "China": "Beijing",
    "India": "Delhi",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Canada": "Ottawa",
    "Mexico": "Mexico City",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Chile": "Santiago",
}

NAMES = [
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Ida",
    "Jack",
    "Karin",
    "Leo",
    "Maria",
    "Nils",
    "Olga",
    "Paul",
    "Rosa",
    "Sam",
    "Tina",
    "Victor",
]

JOBS = [
    "baker",
    "teacher",
    "doctor",
    "farmer",
    "pilot",
    "singer",
    "painter",
    "nurse",
    "carpenter",
    "writer",
    "sailor",
    "lawyer",
    "cook",
    "driver",
    "gardener",
    "tailor",
]

CITIES = [
    "Oslo",
    "Paris",
    "Rome",
    "Berlin",
    "Lima",
    "Cairo",
    "Tokyo",
    "Madrid",
    "Vienna",
    "Dublin",
    "Athens",
    "Lisbon",
    "Delhi",
    "Havana",
    "Warsaw",
    "Ottawa",
]

ANIMALS = ["fox", "cat", "dog", "owl", "horse", "rabbit", "bear", "goat", "duck", "mouse"]
COLOURS = ["red", "black", "white", "brown", "grey", "golden", "small", "old", "young", "quiet"]
PLACES = ["river", "wood", "park", "lake", "harbour", "bridge", "hill", "castle"]

# Words for the spelling tasks. They are not vocabulary entries, so the tokenizer spells them.
_SPELLING = """
apple beach bird bottle bread bucket butter button candle carpet chair cheese circle cloud coffee
copper corner cotton cousin desert dinner dragon engine feather finger flower forest friend frost
garden giant glass grape hammer helmet honey island jacket jungle kettle kitten ladder lemon letter
lizard market melon mirror monkey music needle ocean onion orange pencil pepper planet pocket potato
puzzle rocket saddle sailor salmon school shadow silver spider spring squash stone summer sunset
table temple ticket tiger timber tomato tower travel tunnel turtle valley velvet violin walnut
water whale window winter wizard yellow zebra anchor basket camel donut eagle falcon goose hotel
igloo jewel koala lamp maple night otter piano queen robin sugar train uncle voice wagon arrow
"""
SPELLING = _SPELLING.split()

# name -> body; {0} and {1} are the argument names
FUNCTIONS = {
    "add": (2, "return {0} + {1}"),
    "subtract": (2, "return {0} - {1}"),
    "multiply": (2, "return {0} * {1}"),
    "divide": (2, "return {0} / {1}"),
    "power": (2, "return {0} ** {1}"),
    "largest": (2, "return max({0}, {1})"),
    "smallest": (2, "return min({0}, {1})"),
    "equal": (2, "return {0} == {1}"),
    "double": (1, "return {0} * 2"),
    "triple": (1, "return {0} * 3"),
    "square": (1, "return {0} * {0}"),
    "half": (1, "return {0} / 2"),
    "negate": (1, "return -{0}"),
    "increment": (1, "return {0} + 1"),
    "decrement": (1, "return {0} - 1"),
    "is_even": (1, "return {0} % 2 == 0"),
    "is_odd": (1, "return {0} % 2 == 1"),
    "is_empty": (1, "return len({0}) == 0"),
    "length": (1, "return len({0})"),
    "first": (1, "return {0}[0]"),
    "last": (1, "return {0}[-1]"),
    "total": (1, "return sum({0})"),
    "mean": (1, "return sum({0}) / len({0})"),
    "reverse": (1, "return {0}[::-1]"),
}
ARGUMENTS = ["a", "b", "c", "n", "m", "x", "y", "z", "s", "t", "value", "item", "left", "right"]
