"""A step's buckets on their way: while the messages of one travel, the next is encoded and the one before decoded.

Round 1 of a bucket is posted as soon as it is encoded. Then the bucket before it is reduced and its round 2 posted, and
the one before that is decoded: the same order of messages on all ranks.
"""

import queue
import threading
import time
import weakref

import torch

from . import library


class _Job:
    """A bucket of DistributedDataParallel: `values` are its gradients in float32, where they are coded."""

    def __init__(self, key, number, buffer, values):
        self.key, self.number, self.buffer, self.values = key, number, buffer, values
        self.outgoing, self.incoming, self.returning, self.means = {}, {}, {}, {}
        self.bytes_sent = 0
        self.works = []  # its messages on their way
        self.future = None


class Pipeline:
    def __init__(self, coder, transport):
        self._coder, self._transport = coder, transport
        self._jobs = {}  # by the index of DistributedDataParallel's bucket
        self._dropped = []  # numbers of buckets that are not used any more
        self._open = False
        self._step = 0
        self._encoded = None  # the bucket whose round 1 is on its way
        self._reduced = None  # the one whose round 2 is on its way
        self._under_way = []  # all of the step
        self._failed = None
        self._wait = 0.0
        self._queue = None
        self._idle = threading.Event()
        self._idle.set()

    def begin(self, step):
        if self._open:
            raise RuntimeError(
                "lpsgd: the backward pass before this one has not exchanged all its gradients; after an error in it, "
                "training cannot go on with this model"
            )
        self._open = True
        self._step = step
        self._coder.begin(step)

    def job(self, index, buffer, numbers, gradients):
        """The bucket with this index. It stays the same until DistributedDataParallel changes its buckets."""
        key = (buffer.data_ptr(), buffer.numel(), buffer.dtype, tuple(numbers))
        job = self._jobs.get(index)
        if job is None or job.key != key:
            if job is not None:
                self._dropped.append(job.number)
            job = self._jobs[index] = self._make_job(key, buffer, numbers, gradients)
        job.buffer = buffer
        return job

    def _make_job(self, key, buffer, numbers, gradients):
        if buffer.layout != torch.strided:
            raise ValueError("sparse gradients cannot be exchanged; use Embedding(sparse=False)")
        values = buffer if buffer.dtype == torch.float32 else torch.empty_like(buffer, dtype=torch.float32)
        item = buffer.element_size()
        addresses = [
            values.data_ptr() + (gradient.data_ptr() - buffer.data_ptr()) // item * 4
            for gradient in gradients
        ]
        number = self._coder.add_bucket(numbers, addresses)
        job = _Job(key, number, buffer, values)
        rank, ranks = self._coder.rank, self._coder.ranks

        def view(which, peer):
            return self._transport.view(*self._coder.message(number, which, peer))

        for shift in range(1, ranks):  # ranks begin with different peers
            peer = (rank + shift) % ranks
            job.outgoing[peer] = view(library.OUTGOING, peer)
            job.incoming[peer] = view(library.INCOMING, peer)
            job.returning[peer] = view(library.MEAN, rank)
            job.means[peer] = view(library.MEAN, peer)
        job.bytes_sent = sum(m.numel() for m in (*job.outgoing.values(), *job.returning.values()))
        return job

    def start(self, job, last):
        """Exchanges the bucket. Returns the future of its means, which comes when the step's exchange is done."""
        self._idle.clear()
        if self._transport.cuda:
            return self._start_on_gpu(job, last)
        job.future = torch.futures.Future()
        if self._queue is None:
            self._queue = queue.SimpleQueue()
            thread = threading.Thread(target=_serve, args=(self._queue,), name="lpsgd", daemon=True)
            thread.start()
            weakref.finalize(self, _stop, self._queue, thread)
        self._queue.put((self, job, last))
        # An exception reaches the backward pass only from a callback.
        return job.future.then(_take)

    def require_idle(self):
        """Waits for the end of a step's exchange."""
        if self._failed:
            raise self._failed
        if not self._idle.wait(timeout=600) or self._open:
            raise RuntimeError("a backward pass is under way")

    def take_wait(self):
        wait, self._wait = self._wait, 0.0
        return wait

    def run(self, job, last):
        """On the CPU, on the exchange's own thread."""
        try:
            if self._failed:
                raise self._failed
            self._under_way.append(job)
            if job.values is not job.buffer:
                job.values.copy_(job.buffer)
            self._advance(job)
            if not last:
                return
            self._end()
            for done in self._take_all():
                if done.values is not done.buffer:
                    done.buffer.copy_(done.values)
                done.future.set_result(done.buffer)
        except Exception as cause:
            error = self._failed = self._failed or RuntimeError(
                f"lpsgd: the exchange of gradients failed in step {self._step}: {cause}"
            )
            for failed in {job, *self._take_all()}:
                failed.future.set_result(error)
            self._encoded = self._reduced = None
        if last:
            self._idle.set()

    def _start_on_gpu(self, job, last):
        """Queues all work. Coding and messages wait for each other on streams, and the host for nothing."""
        device, gradients = self._transport.device, self._transport.gradient_stream
        job.future = torch.futures.Future(devices=[device])
        gradients.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device):
            with torch.cuda.stream(gradients):
                if job.values is not job.buffer:
                    job.values.copy_(job.buffer)
            self._under_way.append(job)
            with torch.cuda.stream(self._transport.message_stream):
                self._advance(job)
                if last:
                    self._end()
            with torch.cuda.stream(gradients):
                for done in self._take_all() if last else ():
                    if done.values is not done.buffer:
                        done.buffer.copy_(done.values)
                    done.future.set_result(done.buffer)
        if last:
            self._idle.set()
        return job.future

    def _advance(self, job):
        """Encodes this bucket, if any, reduces the one before it and decodes the one before that."""
        if job is not None:
            self._coder.encode(job.number)
            job.works = self._transport.post(job.outgoing, job.incoming, 2 * job.number)
        encoded, self._encoded = self._encoded, job
        if encoded is not None:
            self._wait_for(encoded)
            self._coder.reduce(encoded.number)
            encoded.works = self._transport.post(encoded.returning, encoded.means, 2 * encoded.number + 1)
        reduced, self._reduced = self._reduced, encoded
        if reduced is not None:
            self._wait_for(reduced)
            self._coder.decode(reduced.number)
            reduced.works = []

    def _wait_for(self, job):
        since = time.perf_counter()
        self._transport.wait(job.works)
        self._wait += time.perf_counter() - since

    def _end(self):
        self._advance(None)
        self._advance(None)
        self._coder.end()
        self._open = False
        for number in self._dropped:
            self._coder.drop_bucket(number)
        self._dropped.clear()

    def _take_all(self):
        under_way, self._under_way = self._under_way, []
        return under_way


def _take(future):
    value = future.value()
    if isinstance(value, Exception):
        raise value
    return value


def _stop(jobs, thread):
    """At the end of the program, too: Python aborts it if a thread is in PyTorch's code then. A thread that waits for a
    rank that has failed does not come; the program ends without it."""
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(timeout=2)


def _serve(jobs):
    for pipeline, job, last in iter(jobs.get, None):
        pipeline.run(job, last)
        del pipeline, job  # the next may never come
