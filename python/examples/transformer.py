#!/usr/bin/env python3
"""A small transformer that predicts the next character of a text, trained by DistributedDataParallel with gradients in few
bits. The line that matters is the call of lpsgd.compress_gradients.

    torchrun --nproc-per-node 2 transformer.py --train ptb.train.txt --valid ptb.valid.txt \\
        --codec '{kind: qsgd, bits: 4, bucket: 512}'

Without --codec gradients are averaged by DistributedDataParallel itself. Rank 0 prints a JSON object for each evaluation.
"""

import argparse
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import lpsgd  # noqa: E402

WIDTH, LAYERS, HEADS, CONTEXT = 128, 2, 4, 64


class Transformer(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, characters)
        self.register_buffer("later", torch.full((CONTEXT, CONTEXT), -math.inf).triu(1), persistent=False)

    def forward(self, text):
        x = self.characters(text) + self.positions.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.later)
        return self.scores(self.norm(x))


def read(path, numbers):
    """The text as numbers of characters. `numbers` gets those that it lacks."""
    with open(path, encoding="utf-8") as file:
        return torch.tensor([numbers.setdefault(character, len(numbers)) for character in file.read()])


def bits_per_character(model, batch):
    scores = model(batch[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
    return loss / math.log(2)


@torch.no_grad()
def evaluate(module, text, batch):
    """Mean over the whole text but its last, shorter piece."""
    module.eval()
    pieces = text[: (len(text) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)
    total = sum(bits_per_character(module, part).item() * len(part) for part in pieces.split(batch))
    module.train()
    return total / len(pieces)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--train", required=True, help="a text file")
    parser.add_argument("--valid", required=True, help="a text file")
    parser.add_argument("--codec", help="of the gradients, as in lpsgd's configuration")
    parser.add_argument("--warmup", type=int, default=0, help="steps at the start without it")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text in a step, on each rank")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate; it falls along half a cosine")
    parser.add_argument("--every", type=int, default=500, help="steps from one evaluation to the next")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    numbers = {}
    train, valid = read(options.train, numbers), read(options.valid, numbers)
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(Transformer(len(numbers)))
    exchange = None
    if options.codec:
        exchange = lpsgd.compress_gradients(
            model, options.codec, warmup_steps=options.warmup, seed=options.seed
        )

    optimizer = torch.optim.AdamW(model.parameters(), options.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    generator = torch.Generator().manual_seed(1000 * options.seed + rank)
    start = time.perf_counter()
    for step in range(1, options.steps + 1):
        at = torch.randint(len(train) - CONTEXT, (options.batch,), generator=generator)
        batch = torch.stack([train[i : i + CONTEXT + 1] for i in at])
        optimizer.zero_grad()
        bits_per_character(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        schedule.step()
        if rank == 0 and (step % options.every == 0 or step == options.steps):
            record = {
                "step": step,
                "bits_per_character": round(evaluate(model.module, valid, 256), 4),
                "seconds": round(time.perf_counter() - start, 1),
            }
            if exchange:
                record["wire_ratio"] = round(exchange.bytes_float32 / max(1, exchange.bytes_sent), 1)
            print(json.dumps(record), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
