"""The recipe's verbs."""

from __future__ import annotations

import dllm_train.judge  # importing it must not take the verb's place in the package

from dllm_core.cli.foreign import load_commands


def test_verbs_survive_the_import_of_their_modules() -> None:
    commands, owners, errors = load_commands()
    assert errors == {}
    assert {verb for verb, plugin in owners.items() if plugin == "train"} == {"train", "judge"}
    assert commands["judge"].name == "judge"
    assert callable(dllm_train.judge.judge_model)
