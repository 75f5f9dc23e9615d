"""Model references: catalogue first, then paths, and never the network."""

from pathlib import Path

import pytest

from dllm_core.errors import DllmError, NotFoundError, UnsupportedError, UsageError
from dllm_core.plugins import Registry
from dllm_core.resolve import resolve


@pytest.fixture
def registry(tmp_path):
    found = Registry()
    found.models["tiny"] = (tmp_path / "inside", "built in")
    found.models["llada:8b-instruct"] = (tmp_path / "llada", "")
    return found


def test_catalogue_names_come_first(registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert resolve("tiny", registry) == tmp_path / "inside"
    assert resolve("./tiny", registry) == Path("tiny")
    assert resolve("llada:8b-instruct", registry) == tmp_path / "llada"


def test_existing_paths(registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "repo").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    (tmp_path / "file.gguf").touch()
    assert resolve("org/repo", registry) == Path("org/repo")
    assert resolve("plain", registry) == Path("plain")
    assert resolve(str(tmp_path / "plain"), registry) == tmp_path / "plain"
    assert resolve("file.gguf", registry) == Path("file.gguf")  # open_folder says what is wrong with it
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/plain", registry) == tmp_path / "plain"


@pytest.mark.parametrize(
    ("reference", "kind", "words"),
    [
        ("tiyn", NotFoundError, ["'tiyn'", "did you mean 'tiny'?", "llada:8b-instruct, tiny"]),
        ("llada", NotFoundError, ["'llada'", "did you mean 'llada:8b-instruct'?"]),
        ("zzzzzzzzzz", NotFoundError, ["'zzzzzzzzzz'", "known models", "path of a folder"]),
        ("GSAI-ML/LLaDA-8B-Instruct", NotFoundError, ["'GSAI-ML/LLaDA-8B-Instruct'", "hub", "yet"]),
        ("hf://org/repo@main", NotFoundError, ["hf://org/repo@main", "hub"]),
        ("../no/such/folder", NotFoundError, ["no existing folder"]),
        ("~nobody-of-this-name/x", NotFoundError, ["no existing folder"]),
        ("random:llada-8b", UnsupportedError, ["random:llada-8b", "random weights"]),
        ("", UsageError, ["empty", "tiny"]),
        ("  ", UsageError, ["empty"]),
        ("a\0b", NotFoundError, [r"'a\x00b'"]),
        ("x" * 5000, NotFoundError, ["xxx...xxx"]),
        ("/" + "x" * 5000, NotFoundError, ["xxx...xxx"]),
    ],
)  # fmt: skip
def test_what_cannot_be_found(registry, reference, kind, words):
    with pytest.raises(DllmError) as caught:
        resolve(reference, registry)
    assert type(caught.value) is kind
    text = f"{caught.value.message} -- {caught.value.hint}"
    assert "\n" not in text
    for word in words:
        assert word in text


def test_an_empty_catalogue():
    with pytest.raises(NotFoundError) as caught:
        resolve("tiny", Registry())
    assert "known models: none" in caught.value.hint
