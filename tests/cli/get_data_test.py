"""scripts/get-data against a server on loopback: resuming, checksums, mirrors, never half a data set."""

import bz2
import email.utils
import gzip
import hashlib
import http.server
import io
import json
import lzma
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tarfile
import threading
import time
import unittest
import zipfile

from harness import SOURCE, Case, Result, run


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves self.server.files: path -> (bytes, options). Options: cut (the first answer ends after so many bytes),
    reset and garbage (so does it, with a reset connection, or with bytes that are no TLS), ranges (False: ignores the
    header Range), busy (the first answers: a list of a status and a header Retry-After)."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        if self.path not in self.server.files:
            self.send_error(404)
            return
        content, options = self.server.files[self.path]
        self.server.times.append(time.monotonic())
        if options.get("busy"):
            status, wait = options["busy"].pop(0)
            self.send_response(status)
            if wait:
                self.send_header("Retry-After", wait)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = self.headers.get("Range") if options.get("ranges", True) else None
        first = int(asked[len("bytes=") : -1]) if asked else 0
        if asked and first >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        body = content[first:]
        cut, reset, garbage = (options.pop(name, None) for name in ("cut", "reset", "garbage"))
        self.wfile.write(body[: cut or reset or garbage or len(body)])
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        if garbage:
            os.write(self.connection.fileno(), b"this is no TLS" * 100)

    def log_message(self, *arguments):
        pass


def md5(content):
    return "md5:" + hashlib.md5(content, usedforsecurity=False).hexdigest()


def tar_gz(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def cifar(records, label_bytes=1):
    return b"".join(bytes([r % 10] * label_bytes) + bytes((r + p) % 256 for p in range(3072)) for r in range(records))


def idx(dimensions, content):
    return gzip.compress(struct.pack(f">I{len(dimensions)}I", 0x800 + len(dimensions), *dimensions) + content)


class GetData(Case):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.files, self.server.requests, self.server.times = {}, [], []
        self.scheme, self.environment = "http", {}
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.folder = self.path("data")

    def serve(self, name, content, **options):
        self.server.files["/" + name] = (content, options)
        return self.url(name)

    def url(self, name):
        return f"{self.scheme}://127.0.0.1:{self.server.server_address[1]}/{name}"

    def get(self, name, sources, *arguments):
        table = self.write("sources.json", json.dumps(sources))
        environment = dict(os.environ, LPSGD_GET_DATA_SOURCES=table, **{"LPSGD_GET_DATA_WAIT": "0", **self.environment})
        command = [os.path.join(SOURCE, "scripts/get-data"), name, *(arguments or [self.folder])]
        return Result(subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment))

    def one(self, content, url, **more):
        file = {"urls": [url], "bytes": len(content), "checksum": md5(content), "take": {"set/": ""}, **more}
        return {"set": {"folder": "the-set", "bytes": 1000, "alternatives": [[file]]}}

    def assert_nothing(self, *kept):
        """There is no data set, and nothing else but what is kept to go on from."""
        found = [os.path.join(parent, name) for parent, _, names in os.walk(self.folder) for name in names]
        self.assertEqual(sorted(os.path.relpath(path, self.folder) for path in found), sorted(kept))
        self.assertFalse(os.path.exists(os.path.join(self.folder, "the-set")))

    def test_fetches_checks_and_unpacks(self):
        content = tar_gz({"set/a.bin": b"A" * 5000, "set/b/c.bin": b"C", "other/d": b"D"})
        sources = self.one(content, self.serve("set.tar.gz", content))
        result = self.get("set", sources)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(sorted(os.listdir(self.folder)), ["the-set"])
        with open(os.path.join(self.folder, "the-set/a.bin"), "rb") as file:
            self.assertEqual(file.read(), b"A" * 5000)
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "the-set"))), ["a.bin", "b"])
        lines = result.out.splitlines()
        self.assertIn("to download", lines[0])  # the size first
        self.assertNotIn("\r", result.out)
        # What is there is left alone.
        requests = len(self.server.requests)
        again = self.get("set", sources)
        self.assertEqual((again.status, len(self.server.requests)), (0, requests))
        self.assertIn("is there already", again.out)

    def test_goes_on_after_an_interruption(self):
        content = tar_gz({"set/a.bin": os.urandom(3 << 20)})
        url = self.serve("set.tar.gz", content, cut=1 << 20)
        result = self.get("set", self.one(content, url))
        self.assertEqual(result.status, 0, result)
        self.assertEqual(self.server.requests, [("/set.tar.gz", None), ("/set.tar.gz", f"bytes={1 << 20}-")])

    def test_goes_on_after_a_reset(self):
        content = tar_gz({"set/a.bin": os.urandom(3 << 20)})
        result = self.get("set", self.one(content, self.serve("set.tar.gz", content, reset=1 << 20)))
        self.assertEqual(result.status, 0, result)
        self.assertIn("Connection reset by peer; again in 1 s", result.out)
        self.assertEqual(len(self.server.requests), 2)

    @unittest.skipUnless(shutil.which("openssl"), "openssl is not installed, which makes a certificate")
    def test_goes_on_after_an_error_of_tls(self):
        key, certificate = self.path("key.pem"), self.path("certificate.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.scheme, self.environment = "https", {"SSL_CERT_FILE": certificate}
        content = tar_gz({"set/a.bin": os.urandom(3 << 20)})
        result = self.get("set", self.one(content, self.serve("set.tar.gz", content, garbage=1 << 20)))
        self.assertEqual(result.status, 0, result)
        self.assertRegex(result.out, r"\[SSL[^\n]*; again in 1 s")
        self.assertEqual(len(self.server.requests), 2)

    def test_a_busy_server_is_asked_again(self):
        content = tar_gz({"set/a.bin": b"A"})
        self.environment = {"LPSGD_GET_DATA_WAIT": "0.05"}  # seconds for each
        date = email.utils.formatdate(time.time() + 30, usegmt=True)
        busy = [(503, None), (429, "10"), (503, date), (503, "no number")]
        result = self.get("set", self.one(content, self.serve("set.tar.gz", content, busy=busy)))
        self.assertEqual(result.status, 0, result)
        waits = [float(x) for x in re.findall(r"(?:429 Too Many Requests|503 Service Unavailable); again in (\d+) s", result.out)]
        self.assertEqual((waits[0], waits[1], waits[3]), (1, 10, 3))
        self.assertTrue(25 <= waits[2] <= 30, waits)
        between = [b - a for a, b in zip(self.server.times, self.server.times[1:])]
        self.assertGreaterEqual(between[1], 0.5)
        # Not for ever, and not for as long as the server likes.
        subprocess.run(["rm", "-rf", self.folder], check=True)
        self.environment = {}
        url = self.serve("set.tar.gz", content, busy=10 * [(429, "86400")])
        result = self.get("set", self.one(content, url))
        self.assertEqual(result.status, 1, result)
        self.assertIn("429 Too Many Requests; again in 60 s", result.out)
        self.assertIn(f"{url}: 429 Too Many Requests; what has arrived is kept", result.err)
        self.assertEqual(len(self.server.requests), 10)

    def test_a_full_disk_is_no_error_of_the_network(self):
        content = tar_gz({"set/a.bin": os.urandom(1 << 20)})
        sources = self.one(content, self.serve("set.tar.gz", content))
        table = self.write("sources.json", json.dumps(sources))
        code = ("import resource, signal, sys, os; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
                "resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000)); os.execv(sys.argv[1], sys.argv[1:])")
        result = subprocess.run([sys.executable, "-c", code, os.path.join(SOURCE, "scripts/get-data"), "set", self.folder],
                                capture_output=True, text=True, timeout=60,
                                env=dict(os.environ, LPSGD_GET_DATA_SOURCES=table, LPSGD_GET_DATA_WAIT="0"))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("File too large", result.stderr)
        self.assertEqual(len(self.server.requests), 1)

    def test_goes_on_in_the_next_call(self):
        content = tar_gz({"set/a.bin": os.urandom(100000)})
        downloads = os.path.join(self.folder, ".set.download")
        os.makedirs(downloads)
        with open(os.path.join(downloads, "set.tar.gz.part"), "wb") as file:
            file.write(content[:40000])
        result = self.get("set", self.one(content, self.serve("set.tar.gz", content)))
        self.assertEqual(result.status, 0, result)
        self.assertEqual(self.server.requests, [("/set.tar.gz", "bytes=40000-")])

    def test_goes_on_with_a_whole_part_and_without_ranges(self):
        content = tar_gz({"set/a.bin": os.urandom(100000)})
        for have, ranges in ((len(content), True), (len(content) + 5, True), (40000, False)):
            with self.subTest(have=have, ranges=ranges):
                subprocess.run(["rm", "-rf", self.folder], check=True)
                os.makedirs(os.path.join(self.folder, ".set.download"))
                with open(os.path.join(self.folder, ".set.download/set.tar.gz.part"), "wb") as file:
                    file.write((content + b"extra")[:have])
                result = self.get("set", self.one(content, self.serve("set.tar.gz", content, ranges=ranges)))
                self.assertEqual(result.status, 0, result)

    def test_a_connection_that_always_ends_early(self):
        content = tar_gz({"set/a.bin": os.urandom(100000)})
        url = self.serve("set.tar.gz", content, ranges=False)
        self.server.files["/set.tar.gz"] = (content, _Always(ranges=False, cut=1000))
        result = self.get("set", self.one(content, url))
        self.assertEqual(result.status, 1, result)
        self.assertIn("the connection ended early; what has arrived is kept", result.err)
        self.assert_nothing(".set.download/set.tar.gz.part")

    def test_a_wrong_checksum_is_refused_and_removed(self):
        content = tar_gz({"set/a.bin": b"A"})
        bad = content[:-1] + b"?"
        result = self.get("set", self.one(content, self.serve("set.tar.gz", bad)))
        self.assertEqual(result.status, 1, result)
        self.assertIn(f"{self.url('set.tar.gz')}: wrong checksum, so the file was removed", result.err)
        self.assert_nothing()

    def test_the_next_address_is_tried(self):
        content = tar_gz({"set/a.bin": b"A"})
        sources = self.one(content, "")
        urls = sources["set"]["alternatives"][0][0]
        urls["urls"] = [self.url("missing.tar.gz"), self.serve("wrong.tar.gz", b"wrong"), self.serve("set.tar.gz", content)]
        result = self.get("set", sources)
        self.assertEqual(result.status, 0, result)
        self.assertIn("404", result.out)
        self.assertIn("wrong checksum", result.out)
        urls["urls"].pop()
        subprocess.run(["rm", "-rf", self.folder], check=True)
        result = self.get("set", sources)
        self.assertEqual(result.status, 1, result)
        self.assertIn("missing.tar.gz: 404", result.err)
        self.assertIn("wrong.tar.gz: wrong checksum", result.err)
        self.assert_nothing()

    def test_the_next_alternative_is_tried(self):
        content = b"text\n"
        sources = self.one(b"", self.url("missing.tar.gz"))
        sources["set"]["alternatives"].append(
            [{"urls": [self.serve("a.txt", content)], "bytes": 5, "checksum": md5(content), "keep": "sub/a.txt"}])
        result = self.get("set", sources)
        self.assertEqual(result.status, 0, result)
        with open(os.path.join(self.folder, "the-set/sub/a.txt")) as file:
            self.assertEqual(file.read(), "text\n")

    def test_no_space(self):
        content = tar_gz({"set/a.bin": b"A"})
        sources = self.one(content, self.serve("set.tar.gz", content))
        sources["set"]["bytes"] = 1 << 60
        result = self.get("set", sources)
        self.assertEqual(result.status, 1, result)
        self.assertRegex(result.err, r"data: [0-9.]+ MB are free, and [0-9.]+ MB are needed")
        self.assertEqual(self.server.requests, [])
        self.assert_nothing()

    def test_archives_that_hold_something_else(self):
        for content, text in ((tar_gz({"other/a": b"A"}), "holds none of set/"), (b"no archive", "damaged archive")):
            result = self.get("set", self.one(content, self.serve("set.tar.gz", content)))
            self.assertEqual(result.status, 1, result)
            self.assertIn(text, result.err)
            self.assert_nothing()

    def test_a_damaged_archive_is_removed_and_fetched_anew(self):
        """Archives that have no published checksum, so that only unpacking finds the damage."""
        plain = gzip.decompress(tar_gz({"set/a.bin": os.urandom(200000)}))
        packed = {"gz": gzip.compress(plain), "xz": lzma.compress(plain), "bz2": bz2.compress(plain), "tar": plain}
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("set/a.bin", os.urandom(200000))
        packed["zip"] = out.getvalue()
        for kind, good in packed.items():
            half = len(good) // 2
            damaged = {"cut": good[:half], "changed": good[:half] + b"\xff" * 5000 + good[half + 5000 :]}
            if kind == "tar":
                del damaged["changed"]  # tar has no checksum of contents
            if kind == "gz":
                damaged["bad block"] = good[:10] + b"\xff" * (len(good) - 10)  # zlib.error
            for what, bad in damaged.items():
                with self.subTest(kind=kind, what=what):
                    subprocess.run(["rm", "-rf", self.folder], check=True)
                    sources = self.one(good, self.serve("set.archive", bad))
                    del sources["set"]["alternatives"][0][0]["checksum"]
                    result = self.get("set", sources)
                    self.assertEqual(result.status, 1, result)
                    self.assertRegex(result.err, r"^get-data: set: \S*set.archive: damaged archive, so it was removed: .*\n$")
                    self.assert_nothing()
                    self.serve("set.archive", good)
                    self.assertEqual(self.get("set", sources).status, 0)

    def test_members_stay_inside(self):
        content = tar_gz({"set/../../outside": b"A", "set/a": b"A"})
        self.assertEqual(self.get("set", self.one(content, self.serve("set.tar.gz", content))).status, 0)
        self.assertFalse(os.path.exists(self.path("outside")))
        self.assertEqual(os.listdir(os.path.join(self.folder, "the-set")), ["a"])

    def test_content_without_a_published_checksum(self):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("set/wav/x/a.raw", b"AA")
            archive.writestr("set/etc/list", b"a\n")
        content = out.getvalue()
        files = (("etc/list", b"a\n"), ("wav/x/a.raw", b"AA"))
        lines = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files)
        sources = self.one(content, self.serve("set.zip", content))
        del sources["set"]["alternatives"][0][0]["checksum"]
        for text, status in ((lines, 0), (lines + "more", 1)):
            subprocess.run(["rm", "-rf", self.folder], check=True)
            sources["set"]["content"] = {"files": ["wav/*.raw", "etc/*"], "checksum": md5(text.encode())}
            result = self.get("set", sources)
            self.assertEqual(result.status, status, result)
        self.assertIn("another checksum than expected", result.err)
        self.assert_nothing()

    def test_mistakes_and_imagenet(self):
        for arguments in (["nothing"], ["set", self.folder, "more"]):
            result = self.get(arguments[0], {"set": {}}, *arguments[1:])
            self.assertEqual(result.status, 2, result)
            self.assertIn("names: set, imagenet", result.err)
        result = self.get("imagenet", {})
        self.assertEqual(result.status, 1, result)
        for word in ("https://image-net.org", "ILSVRC2012_img_train.tar", self.folder):
            self.assertIn(word, result.out)

    def test_lpsgd_reads_what_was_fetched(self):
        """Small archives in the original layouts, fetched and then read through by `lpsgd data check`."""
        ten = tar_gz({f"cifar-10-batches-bin/{name}.bin": cifar(4)
                      for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")})
        hundred = tar_gz({f"cifar-100-binary/{name}.bin": cifar(4, 2) for name in ("train", "test")})
        digits = {f"{s}-images-idx3-ubyte.gz": idx([5, 28, 28], bytes(5 * 784)) for s in ("train", "t10k")}
        digits.update({f"{s}-labels-idx1-ubyte.gz": idx([5], bytes(range(5))) for s in ("train", "t10k")})
        keep = [{"urls": [self.serve(name, content)], "bytes": len(content), "checksum": md5(content), "keep": name}
                for name, content in digits.items()]

        def archive(name, content, prefix):
            return [[{"urls": [self.serve(name, content)], "bytes": len(content), "checksum": md5(content),
                      "take": {prefix: ""}}]]

        sources = {
            "cifar10": {"folder": "cifar-10-batches-bin", "bytes": 1,
                        "alternatives": archive("ten.tar.gz", ten, "cifar-10-batches-bin/")},
            "cifar100": {"folder": "cifar-100-binary", "bytes": 1,
                         "alternatives": archive("hundred.tar.gz", hundred, "cifar-100-binary/")},
            "mnist": {"folder": "mnist", "bytes": 1, "alternatives": [keep]},
        }
        for name, size in (("cifar10", 20), ("cifar100", 4), ("mnist", 5)):
            self.assertEqual(self.get(name, sources).status, 0)
            result = run("data", "check", self.config, "--set", f"data.dataset={name}",
                         "--set", f"data.root={self.folder}/{sources[name]['folder']}",
                         "--set", "data.train_samples=0", "--set", "data.test_samples=0")
            self.assertEqual(result.status, 0, result)
            self.assertIn(f"train: {size} ", result.out)


class _Always(dict):
    """Options whose `cut` stays."""

    def pop(self, key, default=None):
        return self.get(key, default)


if __name__ == "__main__":
    unittest.main()
