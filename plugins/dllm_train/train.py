"""The training loop: one process per worker, gradients averaged, resumable, scheduled by elapsed time.

Workers are processes with one thread each: on a shared machine two threads that meet at every operator
lose far more to a busy neighbour than two processes that meet once a step.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch.nn import functional as F

from . import batches, tasks, vocabulary
from .network import Network, Shape


@dataclass
class Options:
    """What a run needs. `minutes` is training time summed over resumed runs."""

    out: Path
    minutes: float = 100.0
    workers: int = 2
    batches_per_step: int = 2  # per worker
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    decay_from: float = 0.55  # share of the time after which the learning rate falls linearly to zero
    judge_every: int = 500
    seed: int = 1
    compile: bool = True


def orthogonalise(g: torch.Tensor) -> torch.Tensor:
    """Muon's Newton-Schulz iteration (Jordan et al. 2024): g -> roughly U V^T of its SVD."""
    x = g.bfloat16() if g.shape[-2] <= g.shape[-1] else g.bfloat16().mT
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x if g.shape[-2] <= g.shape[-1] else x.mT).float()


class Optimiser:
    """Muon for the matrices of the blocks, Adam for tables and norms. Matrices are shared out over workers."""

    def __init__(self, network: Network, options: Options, rank: int) -> None:
        named = list(network.named_parameters())
        self.matrices = [p for n, p in named if p.dim() == 2 and ".blocks." in n]
        self.others = [p for n, p in named if not (p.dim() == 2 and ".blocks." in n)]
        self.momentum = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.AdamW(self.others, lr=options.adam_lr, betas=(0.9, 0.98), weight_decay=0.0)
        self.options, self.rank = options, rank

    def step(self, scale: float) -> None:
        updates = [torch.zeros_like(p) for p in self.matrices]
        for i, (p, m) in enumerate(zip(self.matrices, self.momentum, strict=True)):
            m.lerp_(p.grad, 0.05)
            if i % self.options.workers == self.rank:
                updates[i] = orthogonalise(p.grad.lerp(m, 0.95)) * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
        reduce_sum(updates, self.options.workers)
        lr = self.options.muon_lr * scale
        for p, u in zip(self.matrices, updates, strict=True):
            p.data.mul_(1 - lr * 0.01).add_(u, alpha=-lr)
        for group in self.adam.param_groups:
            group["lr"] = self.options.adam_lr * scale
        self.adam.step()

    def state(self) -> dict:
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load(self, state: dict) -> None:
        self.momentum = state["momentum"]
        self.adam.load_state_dict(state["adam"])


def reduce_sum(tensors: list[torch.Tensor], workers: int) -> None:
    """Sum every tensor over the workers, in place, as one message."""
    if workers == 1:
        return
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    at = 0
    for t in tensors:
        t.copy_(flat[at : at + t.numel()].view_as(t))
        at += t.numel()


def row_losses(network: Network, batch: batches.Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(weighted mean loss, cross-entropy [B, T])."""
    clean, noisy = torch.from_numpy(batch.clean), torch.from_numpy(batch.noisy)
    weight = torch.from_numpy(batch.weight)
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(noisy)
    ce = F.cross_entropy(logits.float().flatten(0, 1), clean.flatten(), reduction="none").view(clean.shape)
    return (ce * weight).sum() / weight.sum(), ce.detach()


class Shares:
    """Task shares that follow the loss: a task that is still wrong is seen more often."""

    def __init__(self) -> None:
        self.loss = np.full(len(tasks.TASKS), 2.0)
        self.table = dict.fromkeys(tasks.TASKS, 1.0)

    def update(self, total: np.ndarray, count: np.ndarray) -> None:
        seen = count > 0
        self.loss[seen] += 0.05 * (total[seen] / count[seen] - self.loss[seen])
        share = self.loss / self.loss.sum() + 0.03
        self.table.update(zip(tasks.TASKS, share / share.sum(), strict=True))


@torch.no_grad()
def judge(network: Network, encoder: batches.Encoder, rows: list[dict], canvas: int = 40) -> dict[str, float]:
    """Exact match per task with block 8 and two tokens a step: a quick look, not the published figure."""
    right: dict[str, list[bool]] = {}
    prompts = [encoder.prompt(row["prompt"]) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: len(prompts[i]))
    groups: dict[int, list[int]] = {}
    for i in order:
        groups.setdefault(len(prompts[i]), []).append(i)
    for n, members in groups.items():
        x = torch.full((len(members), n + canvas), encoder.mask)
        x[:, :n] = torch.tensor([prompts[i] for i in members])
        for start in range(n, n + canvas, batches.BLOCK):
            for _ in range(batches.BLOCK // 2):
                with torch.autocast("cpu", torch.bfloat16):
                    block = network(x)[:, start : start + batches.BLOCK].float()
                p, token = block.softmax(-1).max(-1)
                p = p.masked_fill(x[:, start : start + batches.BLOCK] != encoder.mask, -1)
                where = p.topk(2, dim=-1).indices
                x[:, start : start + batches.BLOCK].scatter_(1, where, token.gather(1, where))
            if (x[:, start : start + batches.BLOCK] == encoder.eos).any(1).all():
                break
        for i, line in zip(members, x[:, n:].tolist(), strict=True):
            want = encoder.answer(rows[i]["answer"])
            right.setdefault(rows[i]["task"], []).append(line[: len(want)] == want)
    return {task: sum(v) / len(v) for task, v in right.items()}


def schedule(progress: float, step: int, decay_from: float) -> float:
    """Learning-rate factor: short warm-up, flat, then linear to zero."""
    return min(1.0, (step + 1) / 100) * min(1.0, max(0.0, (1 - progress) / (1 - decay_from)))


def work(rank: int, options: Options) -> None:
    """One worker's whole life."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    if options.workers > 1:
        meeting = f"file://{options.out.resolve()}/workers"  # a file and no port: nothing to collide with
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=options.workers)
    tokenizer = Tokenizer.from_file(str(options.out / "tokenizer.json"))
    encoder = batches.Encoder(tokenizer)
    shape = Shape(tokenizer.get_vocab_size())
    network = Network(shape)
    optimiser = Optimiser(network, options, rank)
    shares, step, elapsed = Shares(), 0, 0.0
    saved = options.out / "state.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=False)
        network.load_state_dict(state["network"])
        optimiser.load(state["optimiser"])
        shares.loss, step, elapsed = state["loss"], state["step"], state["elapsed"]
    plain = network
    run = torch.compile(network, dynamic=False) if options.compile else network
    data = batches.stream(encoder, options.seed * 1000 + rank + 7919 * step, shares.table)
    held_out = tasks.held_out_set(per_task=12)[rank :: options.workers]
    while elapsed < options.minutes * 60:
        began = time.perf_counter()
        total, count = np.zeros(len(tasks.TASKS)), np.zeros(len(tasks.TASKS))
        network.zero_grad(set_to_none=False)
        mean = 0.0
        for _ in range(options.batches_per_step):
            batch = next(data)
            loss, ce = row_losses(run, batch)
            (loss / (options.batches_per_step * options.workers)).backward()
            mean += loss.item() / (options.batches_per_step * options.workers)
            np.add.at(total, batch.task, (ce.numpy() * batch.answer).sum(1))
            np.add.at(count, batch.task, batch.answer.sum(1))
        took = torch.tensor([(time.perf_counter() - began) / options.workers, mean])
        stats = torch.from_numpy(np.stack([total, count])).float()
        reduce_sum([p.grad for p in network.parameters()] + [took, stats], options.workers)
        shares.update(*stats.double().numpy())
        torch.nn.utils.clip_grad_norm_(optimiser.others, 1.0)
        optimiser.step(schedule(elapsed / (options.minutes * 60), step, options.decay_from))
        step += 1
        elapsed += float(took[0]) * 1.12  # the same on every worker; the rest of a step is about 12 %
        if rank == 0 and step % 25 == 0:
            worst = " ".join(f"{t}:{x:.2f}" for t, x in zip(tasks.TASKS, shares.loss, strict=True))
            print(f"step {step} min {elapsed / 60:.1f} loss {float(took[1]):.3f} {worst}", flush=True)
        if step % options.judge_every == 0:
            scores = judge(plain, encoder, held_out)
            table = torch.tensor([scores.get(t, 0.0) for t in tasks.TASKS])
            reduce_sum([table], options.workers)
            if rank == 0:
                line = dict(zip(tasks.TASKS, (table / options.workers).tolist(), strict=True))
                print("judge", json.dumps({k: round(v, 2) for k, v in line.items()}), flush=True)
                save(plain, optimiser, shares, step, elapsed, options, shape, encoder)
    if rank == 0:
        save(plain, optimiser, shares, step, elapsed, options, shape, encoder)


def save(network, optimiser, shares, step, elapsed, options: Options, shape: Shape, encoder) -> None:
    """Checkpoint to resume from, and the model as a Hugging Face folder, both replaced in one move."""
    from safetensors.torch import save_file

    state = {
        "network": network.state_dict(),
        "optimiser": optimiser.state(),
        "loss": shares.loss,
        "step": step,
        "elapsed": elapsed,
        "options": {k: str(v) for k, v in asdict(options).items()},
    }
    torch.save(state, options.out / "state.tmp")
    os.replace(options.out / "state.tmp", options.out / "state.pt")
    weights = {n: p.detach().to(torch.bfloat16).contiguous() for n, p in network.named_parameters()}
    save_file(weights, str(options.out / "model.tmp"), metadata={"format": "pt"})
    os.replace(options.out / "model.tmp", options.out / "model.safetensors")
    config = shape.config(encoder.mask, encoder.eos)
    (options.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def train(options: Options) -> None:
    """Run (or resume) a training in `options.out`."""
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.out / "tokenizer.json").exists():
        vocabulary.save_tokenizer(vocabulary.build_tokenizer(), options.out)
    if options.workers == 1:
        work(0, options)
    else:
        (options.out / "workers").unlink(missing_ok=True)
        torch.multiprocessing.spawn(work, (options,), nprocs=options.workers)
