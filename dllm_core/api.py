"""The Python API: `load` a model, `generate` text, or `stream` the steps."""

from __future__ import annotations

import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from . import quant
from .backend import F32, I64, Backend
from .checkpoint import open_folder
from .checkpoint.packed import PackedFolder
from .decoding.canvas import Canvas, full_rows
from .decoding.likelihood import Likelihood, greedy_suffix, log_likelihood
from .decoding.loop import Step, StopRule, decode, decode_canvas
from .decoding.options import DecodeOptions, flag
from .decoding.strategies import STRATEGIES, Strategy, find
from .errors import NotFoundError, UnsupportedError, UsageError
from .models import build_model
from .models.base import Model
from .plugins import Registry, load_registry
from .resolve import resolve
from .results import Generation, Greedy, Totals
from .template import Template, from_ids, from_text
from .tokenizer import Tokenizer

Prompt = str | Sequence[int]


class Engine:
    """A loaded model on one backend. Not safe for use from several threads at once."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        defaults: Mapping[str, Any],
        load_s: float,
        name: str,
        strategies: Mapping[str, Strategy] = STRATEGIES,
    ) -> None:
        self.model, self.tokenizer, self.load_s, self.name = model, tokenizer, load_s, name
        self.defaults, self.strategies = dict(defaults), strategies

    @property
    def backend(self) -> Backend:
        return self.model.backend

    # ---- text to ids and back ----

    def encode(self, prompt: Prompt, chat: bool = True, system: str | None = None) -> list[int]:
        """Ids of a prompt. Text goes through the chat template unless `chat` is false; ids pass unchanged."""
        if not isinstance(prompt, str):
            return self._checked([int(i) for i in prompt])
        tokenizer = self._text_needs_tokenizer()
        if chat and tokenizer.chat_template is not None:
            messages = [{"role": "system", "content": system}] if system else []
            return self._checked(tokenizer.encode_chat([*messages, {"role": "user", "content": prompt}]))
        return self._checked(tokenizer.encode(prompt))

    def _text_needs_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UsageError(f"model {self.name} has no tokenizer.json", "give token ids: --prompt-ids 1,2,3")
        return self.tokenizer

    def _checked(self, ids: list[int]) -> list[int]:
        vocab = self.model.facts.vocab_size
        for i in ids:
            if not 0 <= i < vocab:
                raise UsageError(f"token id {i} is outside the vocabulary", f"ids go from 0 to {vocab - 1}")
        return ids

    # ---- decoding ----

    def options(self, strategy: str | None = None, **given: Any) -> DecodeOptions:
        """Decoding settings: `given` over the named strategy over the model's own defaults over the built-in ones."""
        base = dict(self.defaults)
        if strategy is not None:
            base |= find(strategy, self.strategies).options
        options = DecodeOptions.build(given, base)
        self._checked(list(options.suppress_ids))
        if options.stop and self.tokenizer is None:
            raise UsageError(
                f"--stop needs text, model {self.name} has no tokenizer.json", "use --suppress-ids or --eos"
            )
        return options

    def stream(self, prompts: Sequence[Sequence[int]], options: DecodeOptions) -> Iterator[Step]:
        """Decode several prompts (token ids) at once; yields one Step per forward pass."""
        if isinstance(prompts, str) or any(isinstance(ids, str) for ids in prompts):
            raise UsageError("stream takes lists of token ids, not text", "give [engine.encode(text)]")
        for ids in prompts:
            self._checked(list(ids))
            self.check_fits(len(ids), options.max_tokens)
        self.backend.clock.seconds.clear()
        return decode(self.model, prompts, options, stop_rule=self._stop_rule(options))

    def check_fits(self, prompt: int, canvas: int, what: str = "canvas") -> None:
        """UsageError if a prompt of so many tokens, with so many after it, exceeds the model's limit."""
        limit = self.model.facts.max_length
        if prompt + canvas > limit:
            lower = what == "canvas" and 0 < limit - prompt < canvas
            raise UsageError(
                f"prompt ({prompt} tokens) and {what} ({canvas}) make {prompt + canvas}, the model's limit is {limit}",
                f"lower --max-tokens to {limit - prompt} or less" if lower else f"shorten the prompt or the {what}",
            )

    def _stop_rule(self, options: DecodeOptions) -> StopRule | None:
        """Ends a sequence once its final text holds one of the stop strings."""
        tokenizer = self.tokenizer
        if not options.stop or tokenizer is None:
            return None
        return lambda sequence, final: any(stop in tokenizer.decode(final.tolist()) for stop in options.stop)

    def generate(self, prompt: Prompt, *, chat: bool = True, **given: Any) -> Generation:
        """Answer one prompt. Keyword arguments are `strategy` and the fields of `DecodeOptions`."""
        return self.generate_batch([prompt], chat=chat, **given)[0]

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        chat: bool = True,
        on_step: Callable[[Step], None] = lambda step: None,
        **given: Any,
    ) -> list[Generation]:
        """Answer several prompts of any lengths in one canvas; `on_step` sees every step."""
        if isinstance(prompts, str):
            raise UsageError("generate_batch takes a list of prompts, not one text", "give [text], or call generate")
        options = self.options(**given)
        ids = [self.encode(p, chat) for p in prompts]
        return self._collect(self.stream(ids, options), [len(p) for p in ids], options, on_step) if ids else []

    def fill(
        self,
        template: Prompt | Template,
        *,
        on_step: Callable[[Step], None] = lambda step: None,
        **given: Any,
    ) -> Generation:
        """Fill the masks of a template: ids with mask tokens inside, or text with [MASK] and [MASK:n].

        What is no mask stays as it is. The result's `text` is the whole filled template, its literal text exactly as
        given; end tokens that were written into masks have no text. Keyword arguments as `fill_options`; a template
        that answers a prompt is made by `template`.
        """
        template = self.template(template)
        options = self.fill_options(template, **given)
        canvas = Canvas.template([template.ids], self.model.facts.mask_id)
        self.backend.clock.seconds.clear()
        filled = self._collect(decode_canvas(self.model, canvas, options), [0], options, on_step)[0]
        text = None if self.tokenizer is None else template.text(filled.tokens, self.tokenizer)
        written = [t for t, before in zip(filled.tokens, template.ids, strict=True) if before != t]
        return replace(
            filled,
            text=text,
            prompt_tokens=len(template.ids) - template.masks,
            canvas_tokens=template.masks,
            useful_tokens=len(written) - sum(t in self._ends for t in written),
            finish_reason="masks_left" if filled.masks_left else "filled",
        )

    def fill_options(self, template: Template, strategy: str | None = None, **given: Any) -> DecodeOptions:
        """Decoding settings of a fill: one block and one token a step if not given.

        An end token ends no template: frozen text may follow it. So --eos stop, --stop and --grow are refused, and
        the `eos` of a strategy is dropped.
        """
        refused = [flag(key) for key in ("max_tokens", "stop", "grow") if given.get(key)]
        refused += ["--eos stop"] if given.get("eos") == "stop" else []
        if refused:
            raise UsageError(f"{refused[0]} does not go with a template", "the template says how much is filled in")
        length = len(template.ids) - template.ids.index(self.model.facts.mask_id)
        fixed = {"max_tokens": length, "eos": given.pop("eos", None) or "keep", "stop": (), "grow": False}
        if given.get("block_length") is None:
            fixed["block_length"] = length
        return self.options(strategy, **{**given, **fixed})

    def template(
        self, template: Prompt | Template, prompt: Prompt | None = None, chat: bool = True, system: str | None = None
    ) -> Template:
        """A template as ids; [MASK:n] in a text stands for n mask tokens, [MASK] for one.

        With a `prompt`, encoded as for `generate`, the template is the beginning of its answer.
        """
        if not isinstance(template, Template):
            before = None if prompt is None else self.encode(prompt, chat, system)
            if isinstance(template, str):
                template = from_text(template, self._text_needs_tokenizer(), self.model.facts.max_length, before)
            else:
                template = from_ids(self._checked([int(i) for i in template]), self.model.facts.mask_id, before)
        if not template.masks:
            raise UsageError("the template has no mask", "write [MASK] or [MASK:n] where text is to be filled in")
        self.check_fits(len(template.ids), 0)
        return template

    def score(self, prompt: Prompt, answer: Prompt, *, chat: bool = True, **given: Any) -> Likelihood:
        """Monte Carlo bound on log p(answer | prompt); keyword arguments as `decoding.likelihood.log_likelihood`."""
        prompt_ids, answer_ids = self.encode_pair(prompt, answer, chat)
        return log_likelihood(self.model, prompt_ids, answer_ids, **given)

    def greedy(self, prompt: Prompt, answer: Prompt, *, chat: bool = True, cfg_scale: float = 0.0) -> Greedy:
        """Whether greedy decoding of as many tokens as `answer` has writes exactly `answer`."""
        prompt_ids, answer_ids = self.encode_pair(prompt, answer, chat)
        tokens, _ = greedy_suffix(self.model, prompt_ids, len(answer_ids), cfg_scale)
        text = None if self.tokenizer is None else self.tokenizer.decode(tokens)
        return Greedy(tokens == answer_ids, tokens, text)

    def encode_pair(self, prompt: Prompt, answer: Prompt, chat: bool = True) -> tuple[list[int], list[int]]:
        """Ids of a prompt and of the answer that is scored after it.

        Without a chat template blanks at the end of the prompt belong to the answer, since most tokenizers join a
        blank to the word after it.
        """
        template = self.tokenizer is not None and self.tokenizer.chat_template is not None
        if isinstance(prompt, str) and isinstance(answer, str) and not (chat and template):
            kept = prompt.rstrip()
            prompt, answer = kept, prompt[len(kept) :] + answer
        if isinstance(answer, str):
            answer = self._text_needs_tokenizer().encode(answer, bos=False)
        ids = self.encode(prompt, chat), self._checked([int(i) for i in answer])
        if not ids[1]:
            raise UsageError("the answer is empty", "a likelihood needs at least one token")
        self.check_fits(len(ids[0]), len(ids[1]), "answer")
        return ids

    def answer_length(self, generated: Sequence[int]) -> int:
        """How many generated tokens come before the first end token (EOS or end of turn)."""
        return next((i for i, t in enumerate(generated) if t in self._ends), len(generated))

    @property
    def _ends(self) -> set[int]:
        return {t for t in (self.model.facts.eos_id, self.model.facts.eot_id) if t is not None}

    def _collect(
        self, steps: Iterator[Step], prompts: list[int], options: DecodeOptions, on_step: Callable[[Step], None]
    ) -> list[Generation]:
        """Run all steps and describe every sequence; `prompts` are their lengths."""
        began, count, rows, last = time.perf_counter(), 0, 0, None
        for last in steps:
            count, rows = count + 1, rows + last.rows_run
            on_step(last)
        if last is None:
            raise UsageError("there is nothing to generate", "the canvas has no masks")
        seconds = time.perf_counter() - began
        return [
            self._finish(canvas, prompt, options, Totals(count, rows, seconds), reason)
            for canvas, prompt, reason in zip(last.canvas, prompts, last.finished, strict=True)
        ]

    def _finish(
        self, canvas: I64, prompt: int, options: DecodeOptions, totals: Totals, finished: str | None
    ) -> Generation:
        tokens = [int(t) for t in canvas]
        generated = tokens[prompt:]
        useful = self.answer_length(generated)
        text = None if self.tokenizer is None else self.tokenizer.decode(generated[:useful])
        if text is not None and finished == "stop":
            text = text[: min(text.index(stop) for stop in options.stop if stop in text)]
        masks = generated.count(self.model.facts.mask_id)
        return Generation(
            text=text,
            tokens=tokens,
            prompt_tokens=prompt,
            forward_passes=totals.passes,
            steps=totals.passes,
            rows_run=totals.rows,
            finish_reason=finished or ("eos" if useful < len(generated) else "masks_left" if masks else "length"),
            seed=options.seed,
            backend=self.backend.name,
            isa=self.backend.isa,
            scheme=self.model.scheme,
            threads=self.backend.threads,
            load_s=self.load_s,
            generate_s=totals.seconds,
            ms_per_step=1e3 * totals.seconds / totals.passes,
            useful_tokens=useful,
            canvas_tokens=len(generated),
            masks_left=masks,
            peak_rss_bytes=peak_rss_bytes(),
            ms_by_kind={kind: 1e3 * s / totals.passes for kind, s in self.backend.clock.seconds.items()},
        )

    def logits(self, ids: Sequence[int], rows: Sequence[int] | None = None) -> F32:
        """Raw logits float32 [rows, vocab] of one forward pass over `ids`; all rows when `rows` is None."""
        ids = self._checked([int(i) for i in ids])
        if not ids:
            raise UsageError("the prompt has no tokens", "give at least one")
        if len(ids) > self.model.facts.max_length:
            raise UsageError(f"{len(ids)} tokens exceed the model's limit of {self.model.facts.max_length}")
        wanted = list(range(len(ids))) if rows is None else list(rows)
        for r in wanted:
            if not 0 <= r < len(ids):
                raise NotFoundError(
                    f"row {r} is outside the {len(ids)} rows of the input", f"rows go from 0 to {len(ids) - 1}"
                )
        facts = self.model.facts
        kv = self.backend.allocate_kv(facts.layers, len(ids), facts.kv_heads, facts.head_dim)
        keep, back = np.unique(np.asarray(wanted, np.int64), return_inverse=True)
        h = self.model.hidden(np.asarray(ids, np.int64), kv, full_rows(np.array([0, len(ids)], np.int64)), keep)
        return self.backend.linear(h, self.model.head)[back]


def load(
    name: str = "tiny",
    *,
    backend: str | None = None,
    scheme: str | None = None,
    threads: int | None = None,
    registry: Registry | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    warn: Callable[[str], None] = warnings.warn,
) -> Engine:
    """Load a model by name or folder.

    backend: a registered name, None for the best one that runs here. scheme: see `dllm_core.quant.SCHEMES`, None
    for the backend's default; a packed model has its own. threads: None for every core this process may use.
    warn: told if a packed model must be rearranged for the backend.
    """
    began = time.perf_counter()
    registry = registry or load_registry()
    threads = default_threads() if threads is None else threads
    if threads < 1:
        raise UsageError(f"--threads is {threads}", "it must be at least 1")
    engine = choose_backend(registry, backend, threads)
    if scheme is not None:
        check_scheme(engine, scheme)
    folder = open_folder(resolve(name, registry))
    if isinstance(folder, PackedFolder):
        scheme, folder.warn = folder.check_scheme(scheme), warn
    scheme = scheme or engine.default_scheme
    check_scheme(engine, scheme)
    model = build_model(folder.config, folder, engine, scheme, registry, progress)
    tokenizer = Tokenizer.from_folder(folder.path, model.facts.vocab_size)
    if tokenizer is not None and model.facts.eot_id is None:  # config.json does not name it
        model.facts = replace(model.facts, eot_id=tokenizer.eot_id)
    defaults = {**model.facts.decoding, **_decoding_defaults(folder.generation_config)}
    return Engine(model, tokenizer, defaults, time.perf_counter() - began, name, registry.strategies)


def choose_backend(registry: Registry, name: str | None, threads: int) -> Backend:
    """The backend called `name`, or the best one that runs here."""
    return registry.best_backend(threads) if name is None else registry.backend(name, threads)


def check_scheme(backend: Backend, scheme: str) -> None:
    """UnsupportedError, with the choices, unless the backend has the scheme."""
    if quant.get_scheme(scheme).name not in backend.schemes:
        raise UnsupportedError(
            f"backend {backend.name} does not support scheme {scheme}", f"it supports: {', '.join(backend.schemes)}"
        )


def _decoding_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding settings of generation_config.json, under the hub's names or ours."""
    renamed = {"max_new_tokens": "max_tokens", "gen_length": "max_tokens"}
    return {renamed.get(key, key): value for key, value in generation_config.items()}


def default_threads() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_rss_bytes() -> int:
    """The largest resident size this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def model_path(name: str, registry: Registry) -> Path:
    """Where `name` lives on disk."""
    return resolve(name, registry)
