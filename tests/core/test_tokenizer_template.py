"""Chat templates: what LLaDA's own renders to, where templates are found, and how hostile ones end."""

import json
import time

import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Core

from dllm_core import chat_template
from dllm_core.chat_template import render
from dllm_core.errors import CheckpointError, UsageError
from dllm_core.tokenizer import Tokenizer, need_tokenizer

# As a LLaDA folder has it: headers, trimmed content, bos before the first message, always an open answer.
LLADA = (
    "{% set turns = messages %}{% for turn in turns %}"
    "{% set text = '<|start_header_id|>' + turn['role'] + '<|end_header_id|>\n\n'+ turn['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
NAMES = ["<|startoftext|>", "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|mdm_mask|>"]
TOKENS = {"bos_token": NAMES[0], "eos_token": NAMES[1], "mask_token": NAMES[5]}
USER = [{"role": "user", "content": "Hi"}]


def folder_with(folder, template=None, **files):
    made = Core(models.WordLevel({"Hi": 6, "user": 7, "[?]": 8} | {t: i for i, t in enumerate(NAMES)}, unk_token="[?]"))
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in NAMES])
    made.save(str(folder / "tokenizer.json"))
    settings = TOKENS if template is None else TOKENS | {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return need_tokenizer(Tokenizer.from_folder(folder, 16))


def test_llada(tmp_path):
    t = folder_with(tmp_path, LLADA)
    one = "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    answer = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert t.render_chat(USER) == one + answer
    assert t.render_chat(USER, add_generation_prompt=False) == one + answer  # LLaDA's template ignores it
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Hi \n"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "{{ 7 * 7 }}"},
    ]
    assert t.render_chat(conversation) == (
        "<|startoftext|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n{{ 7 * 7 }}<|eot_id|>" + answer
    )


def test_encode_chat_adds_no_second_bos(tmp_path):
    folder_with(tmp_path, LLADA)
    settings = TOKENS | {"chat_template": LLADA, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    t = need_tokenizer(Tokenizer.from_folder(tmp_path, 16))
    assert t.encode("Hi") == [0, 6]
    assert [i for i in t.encode_chat(USER) if i != 8] == [0, 2, 7, 3, 4, 2, 3]


def test_blocks_are_trimmed_and_the_generation_prompt_is_passed(tmp_path):
    template = "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n"
    t = folder_with(tmp_path, template + "{% if add_generation_prompt %}>{% endif %}")
    assert t.render_chat(USER) == "Hi\n>"
    assert t.render_chat(USER, add_generation_prompt=False) == "Hi\n"


def test_the_order_of_places(tmp_path):
    assert folder_with(tmp_path, "config").render_chat(USER) == "config"
    assert folder_with(tmp_path, "config", chat_template__json='{"chat_template": "json"}').render_chat(USER) == "json"
    assert folder_with(tmp_path, "config", chat_template__jinja="own").render_chat(USER) == "own"


def test_named_templates(tmp_path):
    named = [{"name": "tool_use", "template": "tool"}, {"name": "default", "template": "plain"}]
    assert folder_with(tmp_path, named).render_chat(USER) == "plain"
    t = folder_with(tmp_path, named[:1])
    with pytest.raises(UsageError, match="no chat template"):
        t.render_chat(USER)


def test_no_template(tmp_path):
    t = folder_with(tmp_path)
    assert t.chat_template is None
    with pytest.raises(UsageError) as caught:
        t.render_chat(USER)
    assert "--no-chat" in caught.value.hint


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "content": 3}, {"content": "x"}, {}])
def test_messages_are_text(tmp_path, message):
    with pytest.raises(UsageError, match="role and content"):
        folder_with(tmp_path, LLADA).render_chat([message])


def test_helpers_of_the_usual_environment():
    assert render("{{ {'a': '\u00e9<'} | tojson }}", "x", {}) == '{"a": "\u00e9<"}'
    assert render("{{ [1] | tojson(indent=1) }}", "x", {}) == "[\n 1\n]"
    assert render("{{ strftime_now('%Y') }}", "x", {}) == time.strftime("%Y")
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "x", {}) == "012"
    assert render("{% for i in 'abc' %}{{ i ~ loop.length }}{{ '' if loop.last else ',' }}{% endfor %}", "x", {}) == (
        "a3,b3,c3"
    )
    assert render("{% for i in [] %}{% else %}none{% endfor %}{{ missing }}", "x", {}) == "none"
    tree = {"items": [{"n": 1, "items": [{"n": 2, "items": []}]}]}
    text = "{% for i in t['items'] recursive %}{{ i.n }}({{ loop(i['items']) }}){% endfor %}"
    assert render(text, "x", {"t": tree}) == "1(2())"


FAULTS = [
    ("{% if %}", "line 1"),
    ("a\n{% endfor %}", "line 2"),
    ("{% generation %}", "unknown tag 'generation'"),
    ("{{ raise_exception('roles must\n alternate') }}", "roles must alternate"),
    ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ("{{ 'a' + 1 }}", "TypeError"),
    ("{{ messages.x.y }}", "no attribute 'x'"),
    ("{{ 'x' | nosuchfilter }}", "nosuchfilter"),
    ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    ("{{ messages.append(1) }}", "unsafe"),
    ("{% include '/etc/passwd' %}", "loader"),
    ("(" * 3 + "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion"),
]


@pytest.mark.parametrize(("source", "word"), FAULTS, ids=range(len(FAULTS)))
def test_faults_of_a_template_are_one_line(source, word):
    with pytest.raises(CheckpointError) as caught:
        render(source, "chat_template.jinja", {"messages": []})
    assert word in caught.value.message
    assert "chat_template.jinja" in caught.value.message
    assert "\n" not in caught.value.message


HOSTILE = [
    ("{{ range(1000000000) }}", "Range too big"),
    ("{% for i in many %}{% for j in many %}{% endfor %}{% endfor %}", "steps"),
    ("{% for i in many recursive %}{{ loop(many) }}{% endfor %}", "recursion"),
    ("{% for i in range(99999) %}{{ 'a' }}{% endfor %}", "steps"),
    ("{{ long }}{{ long }}", "the text is longer"),
    ("{{ 'a' * 99999999999 }}", "a value is longer"),
    ("{{ 99999999999 * 'a' }}", "a value is longer"),
    ("{{ [0] * 99999999999 }}", "a value is longer"),
    ("{{ 9 ** 9 ** 9 ** 9 }}", "too large"),
    (
        "{% set n = namespace(x='ab') %}{% for i in range(24) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "a value is longer",
    ),
    (
        "{% set n = namespace(x='ab') %}{% for i in range(24) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "a value is longer",
    ),
    ("{% set n = namespace(x=7) %}{% for i in range(12) %}{% set n.x = n.x * n.x %}{% endfor %}", "too large"),
    ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "recursion"),
    ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(20) }}", "steps"),
]


@pytest.mark.parametrize(("source", "word"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_templates_end(source, word, monkeypatch):
    monkeypatch.setattr(chat_template, "STEP_LIMIT", 50_000)
    with pytest.raises(CheckpointError) as caught:
        render(source, "x", {"many": list(range(300)), "long": "a" * (3 << 20)})
    assert word in caught.value.message
    assert "\n" not in caught.value.message


def test_renderings_do_not_share_their_budget(monkeypatch):
    monkeypatch.setattr(chat_template, "STEP_LIMIT", 100)
    for _ in range(5):
        assert render("{% for i in range(90) %}{% endfor %}ok", "x", {}) == "ok"
