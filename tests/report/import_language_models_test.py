"""`lpsgd import` takes language models over: of tokens, with shared weights, positions in a buffer, dropout."""

import unittest

import numpy as np
from import_harness import HEAD, ComparedTest, load, torch

# After nanoGPT, with the function of PyTorch 2, or one in its place, or without it.
GPT = HEAD + """
import math


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    return F.dropout(scores.softmax(-1), dropout_p) @ value


torch.fx.wrap("scaled_dot_product_attention")


class LayerNorm(nn.Module):
    def __init__(self, features, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, features, heads, block_size, dropout, flash):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        self.n_head, self.n_embd, self.dropout, self.flash = heads, features, dropout, flash
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            p = self.dropout if self.training else 0
            if hasattr(F, "scaled_dot_product_attention"):
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
            else:
                y = scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class Block(nn.Module):
    def __init__(self, features, heads, block_size, dropout, flash, bias):
        super().__init__()
        self.ln_1, self.ln_2 = LayerNorm(features, bias), LayerNorm(features, bias)
        self.attn = Attention(features, heads, block_size, dropout, flash)
        self.mlp = nn.Sequential(nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Net(nn.Module):
    def __init__(self, vocab=13, features=16, heads=4, block_size=12, dropout=0.0, flash=False, bias=True, tie=""):
        super().__init__()
        self.block_size = block_size
        blocks = nn.ModuleList(Block(features, heads, block_size, dropout, flash, bias) for _ in range(2))
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocab, features), wpe=nn.Embedding(block_size, features), drop=nn.Dropout(dropout), h=blocks,
            ln_f=LayerNorm(features, bias)))
        self.lm_head = nn.Linear(features, vocab, bias=False)
        if tie == "first":  # PyTorch then names the weight by the last layer
            transformer = self.__dict__["_modules"].pop("transformer")
            self.transformer = transformer
        if tie:
            self.transformer.wte.weight = self.lm_head.weight
        if tie == "frozen":
            self.lm_head.weight.requires_grad = False

    def forward(self, idx):
        b, t = idx.size()
        assert t <= self.block_size, f"Cannot forward sequence of length {t}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def make(**options):
    return settle(Net(**options))
"""

# After PyTorch's tutorial of language models: sines and cosines in a buffer.
SINES = HEAD + """
import math


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout, max_len, kind):
        super().__init__()
        self.dropout, self.kind = nn.Dropout(p=dropout), kind
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.transpose(0, 1) if kind == "frames" else pe, persistent=kind != "hidden")
        self.register_buffer("more", torch.ones(1, 1, d_model))
        self.register_buffer("numbers", torch.arange(7 * d_model).view(7, d_model))
        if kind == "attribute":
            self.plain = pe[:7, 0].clone()
        if kind == "parameter":
            self.fixed = nn.Parameter(pe[:, 0].clone(), requires_grad=False)

    def forward(self, x):
        if self.kind == "attribute":
            return x + self.plain.to(x.device)
        if self.kind == "parameter":
            return x + self.fixed[: x.size(1)]
        if self.kind == "integers":
            return x + self.numbers
        if self.kind == "made":
            return x + torch.ones(7, 8)
        if self.kind == "changed":
            x = x + self.pe[: x.size(1)].transpose(0, 1)
            if self.training:
                self.pe.mul_(0.5)
            return x
        if self.kind == "odd":
            return self.dropout(x + self.pe[1 : x.size(1) + 1].transpose(0, 1))
        if self.kind == "two":
            return self.dropout(x + self.pe[: x.size(1)].transpose(0, 1) * self.more)
        return self.dropout(x + (self.pe[:, : x.size(1)] if self.kind == "frames" else self.pe[: x.size(1)].transpose(0, 1)))


class Net(nn.Module):
    def __init__(self, dropout, kind):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(13, 8), nn.Linear(8, 13)
        self.pos_encoder = PositionalEncoding(8, dropout, 20, kind)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True), 2)
        self.d_model = 8

    def forward(self, src):
        src = self.pos_encoder(self.embedding(src) * math.sqrt(self.d_model))
        return self.linear(self.encoder(src, nn.Transformer.generate_square_subsequent_mask(src.size(1))))


def make(dropout=0.0, kind="batch"):
    return settle(Net(dropout, kind))
"""


class LanguageModels(ComparedTest):
    def test_language_model(self):
        for flash in (False, True):
            with self.subTest(flash=flash):
                out = f"net{flash}"
                said = self.imported(GPT, "--input", "9", "--tokens", "--with", f"flash={flash}", out=out)
                self.assertEqual("left out, because the scores do not depend on it: transformer.h.0.attn.bias" in said, flash)
                (self.root / out).rename(self.root / "net")
                self.assertIn("{attention: transformer.h.1.attn.attention, heads: 4, causal: true}", self.lines())
                self.assertIn("{position: transformer.wpe, frames: 12}", self.lines())
                module = self.module(GPT, masks=[f"transformer.h.{i}.attn.bias" for i in (0, 1)])
                generator = torch.Generator().manual_seed(5)
                x, labels = torch.randint(0, 13, (2, 3, 9), generator=generator)
                self.compare_training(module, self.dumped(x.numpy(), labels.numpy()), x, labels)
                (self.root / "net").rename(self.root / f"{out}.kept")
        tokens = ("--input", "9", "--tokens", "--with")
        for tie in ("last", "first", "frozen"):
            said = self.imported(GPT, *tokens, f"tie={tie}", out=tie)
            self.assertIn(", units: 13, bias: false, weight_of: transformer.wte}", self.text(tie))
            self.assertNotIn("lm_head", said)
            self.assertEqual("need no gradient in PyTorch, but are trained here: transformer.wte.weight" in said, tie == "frozen")
        self.imported(GPT, *tokens, "bias=False", out="unbiased")
        self.assertEqual(self.text("unbiased").count(", bias: false}"), 6)
        for flash in (False, True):
            self.imported(GPT, *tokens, "dropout=0.1", "--with", f"flash={flash}", out=f"dropped{flash}")
            self.assertEqual(self.text(f"dropped{flash}").count(", causal: true, dropout: 0.1}"), 2)

    def test_positions_in_a_buffer(self):
        words = ("--input", "7", "--tokens")
        said = self.imported(SINES, *words)
        self.assertIn("left out, because the scores do not depend on it: pos_encoder.more, pos_encoder.numbers\n", said)
        self.assertIn("{position: pos_encoder.pe, frames: 20, trained: false}", self.lines())
        x, labels = torch.randint(0, 13, (2, 3, 7), generator=torch.Generator().manual_seed(5))
        self.compare_training(self.module(SINES, masks=["pos_encoder.more", "pos_encoder.numbers"]), self.dumped(x.numpy(), labels.numpy()), x, labels)
        for kind in ("frames", "hidden"):
            self.imported(SINES, *words, "--with", f"kind={kind}", "--with", "dropout=0.1", out=kind)
            self.assertIn("{position: pos_encoder.pe, frames: 20, trained: false}", self.text(kind))
        for kind, name, frames in (("attribute", "plain", 7), ("parameter", "fixed", 20)):
            self.imported(SINES, *words, "--with", f"kind={kind}", out=kind)
            self.assertIn(f"{{position: pos_encoder.{name}, frames: {frames}, trained: false}}", self.text(kind))
            table = load(self.root / kind / "weights.safetensors")[f"pos_encoder.{name}.weight"]
            np.testing.assert_allclose(table[:, 0], np.sin(np.arange(frames)), atol=1e-6)
        for kind, expected in (
            ("integers", "adds pos_encoder.numbers, which is of torch.int64; lpsgd adds numbers of floating point"),
            ("made", "adds a tensor that belongs to no layer, made in forward; lpsgd adds parameters and buffers")):
            (line,) = self.refused_lines(SINES, *words, "--with", f"kind={kind}")
            self.assertTrue(line.endswith(expected), line)
        status, _, said = self.run_import(SINES, *words, "--with", "kind=changed", name="make", out="refused")
        self.assertEqual(status, 2)
        self.assertIn("pos_encoder.pe differ", said)
        for kind, buffers in (("odd", "pos_encoder.pe"), ("two", "pos_encoder.more, pos_encoder.pe")):
            (line,) = self.refused_lines(SINES, *words, "--with", f"kind={kind}")
            self.assertTrue(line.endswith(f"adds {buffers}, a tensor that belongs to no layer; lpsgd adds one vector for each "
                                          "frame, of a parameter or a buffer"), line)


if __name__ == "__main__":
    unittest.main()
