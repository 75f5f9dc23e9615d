"""The settings of a decode, checked in one place for the command line, Python and files alike."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

CACHES = ("none", "prefix", "dual", "interstep")
COMMITS = ("quota", "threshold", "factor", "entropy-bound", "entropy-exit")
SCHEDULES = ("linear", "cosine", "timesteps")
REMASKING = ("low_confidence", "random", "margin", "entropy", "origin", "maskgit_plus", "topk_margin")
REVOKES = ("none", "confidence", "remdm")
EOS = ("keep", "stop", "forbid")
CHOICES = {
    "cache": CACHES,
    "commit": COMMITS,
    "schedule": SCHEDULES,
    "remasking": REMASKING,
    "revoke": REVOKES,
    "eos": EOS,
}
# fields of numbers, with the least and the largest value of each
WHOLE = {
    **dict.fromkeys(("max_tokens", "steps", "block_length", "refresh", "revoke_limit"), (1, math.inf)),
    "top_k": (0, math.inf),
    "seed": (0, 2**64 - 1),
}
REAL = {
    **dict.fromkeys(("temperature", "cfg_scale", "alg_temp", "gamma", "factor"), (0, math.inf)),
    **dict.fromkeys(("threshold", "revoke_below", "revoke_rate", "top_p"), (0, 1)),
    "eps": (1e-9, 0.999),
    "eos_penalty": (-1e9, 1e9),
}


@dataclass(frozen=True)
class DecodeOptions:
    """Settings of the sampler; the defaults are LLaDA's own (ML-GSAI/LLaDA generate.py).

    `max_tokens` is the length of the canvas after the prompt ("gen_length"), or with `grow` its limit. `steps` is
    the number of forward passes over all blocks; None means one token a step. With `schedule="timesteps"` the
    sampler is Dream's (DreamLM/Dream generation_utils.py): no blocks unless a cache asks for them, counts from
    timesteps, ranking by the distribution that is sampled from. Caches, `threshold` and `factor` are
    Fast-dLLM's (NVlabs/Fast-dLLM); each rule is described where it is implemented.
    """

    max_tokens: int = 128
    steps: int | None = None
    block_length: int = 32
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    remasking: str = "low_confidence"
    alg_temp: float = 0.0  # > 0: positions are drawn and not ranked
    schedule: str = "linear"
    eps: float = 1e-3  # last timestep of Dream's schedule
    commit: str = "quota"
    threshold: float = 0.9
    factor: float = 1.0
    gamma: float = 0.1  # nats: bound of entropy-bound, limit of entropy-exit
    cache: str = "none"
    refresh: int = 4  # interstep: every how many passes all rows run
    revoke: str = "none"
    revoke_below: float = 0.5  # confidence: committed tokens less likely than this are taken back
    revoke_rate: float = 0.1  # remdm: chance of a committed token to be taken back, per step
    revoke_limit: int = 2  # how often one position may be taken back
    cfg_scale: float = 0.0
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    eos: str = "keep"
    eos_penalty: float = 0.0  # subtracted from the logits of the end tokens
    suppress_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    grow: bool = False
    seed: int = 0
    all_rows: bool = False  # score every row that runs and not only the candidates; the tokens are the same

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_value(field.name, getattr(self, field.name))
        _refuse_nonsense(self)

    @property
    def dream(self) -> bool:
        """Whether the sampler is Dream's."""
        return self.schedule == "timesteps"

    @property
    def one_block(self) -> bool:
        """Dream's sampler knows no blocks; block caches bring them back."""
        return self.dream and self.cache in ("none", "interstep")

    @property
    def total_steps(self) -> int:
        return self.max_tokens if self.steps is None else self.steps

    @property
    def blocks(self) -> int:
        return 1 if self.one_block else -(-self.max_tokens // self.block_length)

    @property
    def carries(self) -> bool:
        """Whether what fails the threshold is owed to later steps (Fast-dLLM's rule for Dream without blocks)."""
        return self.one_block and self.commit == "threshold"

    @property
    def fixed_passes(self) -> bool:
        """Whether a block takes exactly its steps (the authors' samplers) or ends when it is filled."""
        steady = self.commit == "quota" and self.cache == "none" and self.revoke != "confidence"
        return (steady or self.carries) and self.eos != "stop"

    @classmethod
    def build(cls, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> DecodeOptions:
        """`given` over the model's `defaults` over the built-in ones; None counts as not given.

        A model's default for `steps` belongs to its default canvas: it is dropped when another length is given. So are
        defaults for `top_p` and `top_k` at temperature 0, where they mean nothing (but in Dream's sampler).
        A threshold, factor or gamma without `commit` implies the rule that it belongs to.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(f"unknown option {unknown[0]!r}", f"known options: {', '.join(sorted(known))}")
        chosen = {k: v for k, v in given.items() if v is not None}
        base = {k: v for k, v in (defaults or {}).items() if k in known and v is not None}
        if "max_tokens" in chosen and "steps" not in chosen:
            base.pop("steps", None)
        implied = [k for k in ("threshold", "factor", "gamma") if k in chosen and "commit" not in chosen]
        if len(implied) > 1:
            raise UsageError(f"{flag(implied[0])} and {flag(implied[1])} exclude each other", "say which with --commit")
        if implied:
            chosen["commit"] = {"gamma": "entropy-bound"}.get(implied[0], implied[0])
        for key in ("stop", "suppress_ids"):
            if isinstance(chosen.get(key), list):
                chosen[key] = tuple(chosen[key])
        both = {**base, **chosen}
        if not both.get("temperature") and both.get("schedule") != "timesteps":
            both = {k: v for k, v in both.items() if k in chosen or k not in ("top_p", "top_k")}
        return cls(**both)


def flag(key: str) -> str:
    """The command-line spelling of an option."""
    return "--" + key.replace("_", "-")


def check_value(key: str, value: Any) -> None:
    """UsageError unless `value` is one that the field `key` can have; how fields go together is not looked at."""
    wrong = None
    if key in CHOICES:
        if value not in CHOICES[key]:
            wrong = f"choose one of: {', '.join(CHOICES[key])}"
    elif key in WHOLE:
        least, most = WHOLE[key]
        if not (value is None and key == "steps") and not (_is(value, int) and least <= value <= most):
            wrong = f"it must be a whole number {_range(least, most)}"
    elif key in REAL:
        low, high = REAL[key]
        if not (_is(value, int | float) and math.isfinite(value) and low <= value <= high):
            wrong = f"it must be a finite number {_range(low, high)}"
    elif key == "stop":
        if not (isinstance(value, tuple) and all(isinstance(text, str) and text for text in value)):
            wrong = "it must be texts, none of them empty"
    elif key == "suppress_ids":
        if not (isinstance(value, tuple) and all(_is(i, int) for i in value)):
            wrong = "it must be token ids"
    elif not isinstance(value, bool):
        wrong = "it must be true or false"
    if wrong is not None:
        raise UsageError(f"{flag(key)} is {value!r}", wrong)


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _range(low: float, high: float) -> str:
    if high == 2**64 - 1:
        return f"from {low:g} to 2^64 - 1"
    return f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"


def _refuse_nonsense(o: DecodeOptions) -> None:
    """UsageError for combinations that would silently do nothing or never end well."""
    for message, hint in itertools.chain(_commit_conflicts(o), _dream_conflicts(o), _other_conflicts(o)):
        raise UsageError(message, hint)


def _commit_conflicts(o: DecodeOptions) -> Iterator[tuple[str, str]]:
    """(message, hint) for what commit rules and steps do not go with."""
    if o.total_steps < o.blocks:
        yield (
            f"--steps is {o.steps}, fewer than the {o.blocks} blocks of the canvas",
            f"every block needs a step: raise --steps to {o.blocks} or more, or raise --block-length",
        )
    measured = o.remasking in ("low_confidence", "margin", "maskgit_plus", "topk_margin")
    if o.commit in ("threshold", "factor") and not measured:
        yield (
            f"--commit {o.commit} cannot judge --remasking {o.remasking}",
            "it needs a confidence between 0 and 1: low_confidence or margin",
        )
    if o.commit in ("entropy-bound", "entropy-exit") and o.remasking not in ("low_confidence", "entropy"):
        yield (
            f"--commit {o.commit} looks at entropies alone, --remasking {o.remasking} changes nothing",
            "use --remasking entropy",
        )
    if o.schedule == "cosine" and o.commit != "quota":
        yield (
            f"--schedule cosine says how many tokens a pass commits, and so does --commit {o.commit}",
            "use --commit quota, or another schedule",
        )
    if o.revoke == "remdm" and o.commit != "quota":
        yield f"--revoke remdm keeps a schedule, --commit {o.commit} has none", "use --commit quota"


def _dream_conflicts(o: DecodeOptions) -> Iterator[tuple[str, str]]:
    """(message, hint) for rules of Dream's sampler outside of it, and for what it does not have."""
    if o.remasking == "origin" and not o.dream:
        yield "--remasking origin is a rule of Dream's sampler", "add --schedule timesteps"
    if o.remasking == "origin" and o.cache in ("prefix", "dual"):
        yield f"--remasking origin has no blocks for --cache {o.cache}", "use --cache none"
    if o.dream and o.commit not in ("quota", "threshold"):
        yield (
            f"--schedule timesteps does not go with --commit {o.commit}",
            "use --commit quota or threshold, or another schedule",
        )
    if o.alg_temp > 0 and o.commit != "quota":
        yield f"--alg-temp does not go with --commit {o.commit}", "use --commit quota"
    if o.alg_temp > 0 and not o.dream:
        yield "--alg-temp is a rule of Dream's sampler", "add --schedule timesteps"
    if o.alg_temp > 0 and o.remasking in ("origin", "random"):
        yield (
            f"--alg-temp draws by confidence, --remasking {o.remasking} is chance already",
            "use --remasking entropy, maskgit_plus or topk_margin",
        )
    if o.revoke != "none" and o.dream:
        yield f"--revoke {o.revoke} does not go with --schedule timesteps", "use --schedule linear"
    if o.grow and o.one_block:
        yield "--grow adds block after block, Dream's sampler has none", "use --schedule linear"


def _other_conflicts(o: DecodeOptions) -> Iterator[tuple[str, str]]:
    """(message, hint) for sampling, caches and ends."""
    if (o.top_p < 1 or o.top_k > 0) and o.temperature == 0 and not o.dream:
        yield "--top-p and --top-k change nothing at --temperature 0", "raise --temperature"
    if o.revoke != "none" and o.cache != "none":
        yield f"--revoke {o.revoke} needs every row, --cache {o.cache} skips some", "use --cache none"
    if o.grow and o.eos != "stop":
        yield f"--grow has no end with --eos {o.eos}", "add --eos stop"
    if o.eos == "forbid" and (o.logits_eos_inf or o.confidence_eos_eot_inf):
        yield (
            "--eos forbid already bans the end tokens",
            "drop --logits-eos-inf and --confidence-eos-eot-inf",
        )
