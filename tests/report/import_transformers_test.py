"""lpsgd import: transformers, as torchvision has them, of PyTorch's own modules, and written by hand.

    LPSGD=... DUMP_GRADIENTS=... import_transformers_test.py
"""

import unittest

from import_harness import HEAD, ComparedTest

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


class Transformers(ComparedTest):
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
