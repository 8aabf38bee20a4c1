"""lpsgd import: transformers, as torchvision has them, of PyTorch's own modules, and written by hand.

    LPSGD=... DUMP_GRADIENTS=... import_transformers_test.py
"""

import unittest

import numpy as np
import torch
from import_harness import HEAD, ComparedTest, load

VISION = HEAD + """
from torchvision.models.vision_transformer import VisionTransformer


def make(**options):
    return settle(VisionTransformer(**{**dict(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64,
                                              num_classes=10), **options}))
"""

# Its blocks normalise and multiply images whose channels are last; the factors of channels are parameters.
CONVNEXT = HEAD + """
from torchvision.models.convnext import CNBlockConfig, ConvNeXt


class Net(ConvNeXt):
    pass


def make(stochastic_depth_prob=0.0):
    blocks = [CNBlockConfig(8, 12, 2), CNBlockConfig(12, None, 2)]
    return settle(Net(blocks, stochastic_depth_prob, layer_scale=0.7, num_classes=6))
"""

# The blocks of ConvNeXt's authors, and others that read pixels as rows.
PIXELS = HEAD + """
class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-4)
        self.wide, self.narrow = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels, bias=False)
        self.gamma = nn.Parameter(torch.full((channels,), 0.7))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = y + torch.tanh(y) * 0.5
        y = self.gamma * self.narrow(F.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 2, stride=2)
        self.first, self.second = Block(6), Block(6)
        self.attend = nn.MultiheadAttention(6, 3, batch_first=True)
        self.fc, self.more = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x):
        x = self.second(self.first(self.stem(x)))
        rows = x.permute(0, 2, 3, 1)
        pixels = rows.flatten(1, 2)
        return self.fc(self.attend(pixels, pixels, pixels)[0][:, 3]) + self.more(rows.mean((1, 2)))


def make():
    return settle(Net())
"""

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

# After timm: queries, keys and values in one reshape, two tokens, dropout.
TIMM = HEAD + """
class Attention(nn.Module):
    def __init__(self, features, heads, drop, attn_drop):
        super().__init__()
        self.num_heads, self.head_dim, self.scale = heads, features // heads, (features // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.q_norm, self.k_norm, self.attn_drop, self.proj_drop = nn.Identity(), nn.Identity(), nn.Dropout(attn_drop), nn.Dropout(drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q) * self.scale, self.k_norm(k)
        x = self.attn_drop((q @ k.transpose(-2, -1)).softmax(dim=-1)) @ v
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(B, N, C)))


class Net(nn.Module):
    def __init__(self, drop, attn_drop):
        super().__init__()
        self.patch_embed = nn.Conv2d(1, 12, 4, stride=4)
        self.cls_token, self.dist_token = nn.Parameter(torch.randn(1, 1, 12)), nn.Parameter(torch.randn(1, 1, 12))
        self.pos_embed = nn.Parameter(torch.randn(1, 8, 12))
        self.norm1, self.attn, self.norm = nn.LayerNorm(12, eps=1e-6), Attention(12, 3, drop, attn_drop), nn.LayerNorm(12)
        self.head, self.head_dist = nn.Linear(12, 5), nn.Linear(12, 5)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), self.dist_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        x = self.norm(x + self.attn(self.norm1(x)))
        return (self.head(x[:, 0]) + self.head_dist(x[:, 1])) / 2


def make(drop=0.0, attn_drop=0.0):
    return settle(Net(drop, attn_drop))
"""

# Three layers in front of attention, as in BERT; a mask of numbers.
SEPARATE = HEAD + """
class Net(nn.Module):
    def __init__(self, causal=True, scale=2.0, order="qkv"):
        super().__init__()
        self.query, self.key, self.value, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.register_buffer("mask", torch.full((7, 7), float("-inf")).triu(1) if causal else torch.zeros(7, 7))
        self.register_buffer("scale", torch.tensor(scale))

    def heads(self, x):
        return x.view(x.size()[:-1] + (2, x.size(-1) // 2)).permute(0, 2, 1, 3)

    def forward(self, x):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        p = (torch.matmul(q, k.transpose(-1, -2)) / self.scale + self.mask).softmax(dim=-1)
        c = torch.matmul(p, v).permute(0, 2, 1, 3).contiguous()
        return self.out(c.view(c.size()[:-2] + (8,)))


def make(causal=True, scale=2.0):
    return settle(Net(causal, scale))
"""

ENCODER = HEAD + """
class Net(nn.Module):
    def __init__(self, dropout=0.0, attention=None, norm_first=False, activation="relu", batch_first=True, mask=None, last=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout, activation, 1e-4, batch_first, norm_first)
        if attention is not None:
            layer.self_attn.dropout = attention
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8) if last else None)
        self.fc = nn.Linear(8, 5)
        self.kind = mask
        if mask == "bools":
            self.register_buffer("mask", torch.ones(7, 7).triu(1).bool())

    def forward(self, x):
        mask = None
        if self.kind == "numbers":
            mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        elif self.kind == "bools":
            mask = self.mask
        elif self.kind == "odd":
            mask = torch.eye(x.size(1)).bool()
        return self.fc(self.encoder(x, mask))


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


class Transformers(ComparedTest):
    def text(self, out):
        return (self.root / out / "network.yaml").read_text()

    def need_torchvision(self):
        try:
            import torchvision  # noqa: F401
        except ImportError:
            self.skipTest("torchvision is not installed")

    def test_vision_transformer_of_torchvision(self):
        self.need_torchvision()
        said = self.imported(VISION, "--input", "3,32,32")
        self.assertIn("lpsgd's scores of 4 images are PyTorch's", said)
        self.assertNotIn("left out", said)
        lines = self.lines()
        self.assertEqual(lines[:8], [
            "{conv: conv_proj, filters: 32, kernel: 8, stride: 8}",
            "{to_sequence: to_sequence}",
            "{class_token: class_token}",
            "{position: encoder.pos_embedding, frames: 17}",
            "{layer_norm: encoder.layers.encoder_layer_0.ln_1, eps: 1e-06}",
            "{dense: encoder.layers.encoder_layer_0.self_attention.in_proj, units: 96}",
            "{attention: encoder.layers.encoder_layer_0.self_attention, heads: 4}",
            "{dense: encoder.layers.encoder_layer_0.self_attention.out_proj, units: 32}",
        ])
        self.assertEqual(lines[-2:], ["{select_frame: select_frame, index: 0}", "{dense: heads.head, units: 10}"])
        self.compare_images(VISION, (3, 32, 32))
        self.assertEqual(self.names["class_token"], "class_token.weight")
        self.imported(VISION, "--input", "3,32,32", "--with", "dropout=0.2", "--with", "representation_size=9", out="dropped")
        self.imported(VISION, "--input", "3,32,32", "--with", "attention_dropout=0.1", out="attention")
        self.assertEqual(self.text("attention").count(", heads: 4, dropout: 0.1}"), 2)

    def test_convnext_of_torchvision(self):
        self.need_torchvision()
        self.imported(CONVNEXT, "--input", "3,16,16")
        self.assertIn("{conv: features.1.1.layer_scale, filters: 8, kernel: 1, groups: 8, bias: false}", self.lines())
        self.compare_images(CONVNEXT, (3, 16, 16))
        (line,) = self.refused_lines(CONVNEXT, "--input", "3,16,16", "--with", "stochastic_depth_prob=0.1")
        self.assertIn("stochastic depth: no layer of lpsgd computes it; torchvision's take --with stochastic_depth_prob=0", line)

    def test_images_with_channels_last(self):
        self.imported(PIXELS, "--input", "3,8,6")
        self.compare_images(PIXELS, (3, 8, 6))

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

    def test_one_reshape_and_two_tokens(self):
        self.imported(TIMM, "--input", "1,12,8")
        self.assertEqual(self.lines()[1:4], ["{to_sequence: to_sequence}", "{class_token: dist_token}", "{class_token: cls_token}"])
        self.compare_images(TIMM, (1, 12, 8))
        self.imported(TIMM, "--input", "1,12,8", "--with", "drop=0.3", out="dropped")
        self.imported(TIMM, "--input", "1,12,8", "--with", "attn_drop=0.3", out="attention")
        self.assertEqual(self.text("attention").count(", dropout: 0.3}"), 1)

    def test_three_layers_and_a_mask(self):
        said = self.imported(SEPARATE, "--input", "7,8")
        self.assertNotIn("left out", said)
        self.assertIn("{attention: attention, input: [query, key, value], heads: 2, causal: true}", self.lines())
        self.compare_sequences(SEPARATE, "mask", "scale")
        self.imported(SEPARATE, "--input", "7,8", "--with", "causal=False", out="whole")
        self.assertIn("{attention: attention, input: [query, key, value], heads: 2}\n".rstrip(),
                      (self.root / "whole" / "network.yaml").read_text())
        self.assertEqual(self.refused_lines(SEPARATE, "--input", "7,8", "--with", "scale=3.0"),
                         ["matmul_1: scores times 0.33333; lpsgd's attention divides them by the root of a head's features, 4"])

    def test_encoders_of_pytorch(self):
        self.imported(ENCODER, "--input", "7,8")
        self.assertEqual(self.kinds(), {"dense", "attention", "add", "layer_norm", "relu"})
        self.compare_sequences(ENCODER)
        variants = {
            "numbers": ["dropout=0.2", "attention=0.0", "norm_first=True", "activation=gelu", "mask=numbers", "last=False"],
            "bools": ["mask=bools"],
        }
        for out, words in variants.items():
            self.imported(ENCODER, "--input", "7,8", *(part for word in words for part in ("--with", word)), out=out)
            self.assertEqual(self.text(out).count(", causal: true}"), 2)
        text = self.text("numbers")
        self.assertIn("{dropout: encoder.layers.1.dropout2, probability: 0.2}", text)
        self.assertIn("{gelu: encoder.layers.0.gelu}", text)
        self.imported(ENCODER, "--input", "7,8", "--with", "dropout=0.1", out="dropped")
        self.assertEqual(self.text("dropped").count(", heads: 2, dropout: 0.1}"), 2)
        self.assertEqual(self.text("dropped").count(", probability: 0.1}"), 6)
        both = "encoder.layers.0.self_attn, encoder.layers.1.self_attn: "
        for word, expected in (
            ("batch_first=False", "batch_first=False; here the samples come first"),
            ("mask=odd", "a mask that is not causal; in lpsgd a frame attends to all frames, or to itself and those before it"),
        ):
            self.assertEqual(self.refused_lines(ENCODER, "--input", "7,8", "--with", word), [both + expected])

    def test_what_is_refused(self):
        text = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
        self.cross = nn.MultiheadAttention(8, 2, batch_first=True)
        self.padded = nn.MultiheadAttention(8, 2, batch_first=True)
        self.bent = nn.MultiheadAttention(8, 2, batch_first=True)
        nn.utils.spectral_norm(self.bent.out_proj)
        self.two = nn.LayerNorm((7, 8))
        self.plain = nn.LayerNorm(8, elementwise_affine=False)
        self.register_buffer("pe", torch.randn(7, 8))
        self.gamma = nn.Parameter(torch.ones(8))
        self.later = nn.Parameter(torch.ones(1, 1, 8))
        self.fc, self.more = nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x):
        y = self.own(x, x, x)[0] + self.cross(x, x * 2.0, x)[0]
        y = y + self.padded(x, x, x, torch.zeros(2, 7).bool())[0] + self.bent(x, x, x)[0]
        y = self.plain(self.two(y)) + self.pe
        y = torch.cat([y * self.gamma, self.later.expand(x.size(0), -1, -1)], 1)
        return self.fc(y) + self.more(x[:, 1:].mean(1, keepdim=True))


class Heads(nn.Module):  # whose queries, keys and values stand beside each other in each head
    def __init__(self):
        super().__init__()
        self.qkv, self.fc = nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x):
        q, k, v = self.qkv(x).view(-1, 7, 2, 3, 4).transpose(1, 2).unbind(3)
        y = ((q @ k.transpose(2, 3)) * 0.5).softmax(-1) @ v
        return self.fc(y.transpose(1, 2).flatten(2))


class Order(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.again, self.fc = nn.Linear(8, 24), nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x):
        k, q, v = self.qkv(x).view(-1, 7, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = ((q @ k.transpose(2, 3)) * 0.5).softmax(-1) @ v
        q, k, v = self.again(x).view(-1, 7, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = y + torch.relu(q @ k.transpose(2, 3)) @ v
        y = y + torch.softmax(q @ k.transpose(2, 3) * 0.5, 2) @ v
        y = y + torch.softmax((q @ k.transpose(2, 3) * 0.5).masked_fill(torch.ones(7, 7).tril() == 0, -5.0), -1) @ v
        return self.fc(y.transpose(1, 2).flatten(2))
"""
        words = ("--input", "7,8")
        self.assertEqual(self.refused_lines(text, *words, name="Net"), [
            "own: add_bias_kv or add_zero_attn; lpsgd's attention has neither",
            "cross: queries, keys and values of several tensors; of nn.MultiheadAttention only what attends to itself can be imported",
            "padded: key_padding_mask; lpsgd knows the lengths of sequences",
            "bent: has hooks or parametrizations, which change what it computes",
            "two: normalises the last dimensions (7, 8); lpsgd's layer_norm is over the last one",
            "plain: without a weight; lpsgd's layer_norm trains one",
            "mul_1: multiplies by gamma, a tensor that belongs to no layer; lpsgd's factors are of an image's channels",
            "cat: joins a tensor that belongs to no layer; lpsgd's are frames in front of a sequence",
            "mean: a mean over the dimensions 1; lpsgd's are over an image, or over all frames of a sequence",
        ])
        self.assertEqual(self.refused_lines(text, *words, name="Heads"), [
            "matmul: a product of matrices that is not queries times keys of attention: attention reads (2, 7, 4) that is made "
            "of (7, 24); lpsgd's reads sequences whose features have one head behind another"])
        self.assertEqual(self.refused_lines(text, *words, name="Order"), [
            "matmul_1: attention reads parts of one tensor; in lpsgd they are its queries, keys and values side by side, in this order",
            "relu: reads what attention computes on its way; softmax and the product with the values are to follow",
            "softmax_1: dim=2; attention's softmax is over the keys",
            "masked_fill: fills scores of attention with -5.0; lpsgd's with minus infinity",
        ])


if __name__ == "__main__":
    unittest.main()
