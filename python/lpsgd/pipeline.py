"""A step's buckets on their way: while the messages of one travel, the next is encoded and the one before decoded.

Round 1 of a bucket is posted as soon as it is encoded. Then the bucket before it is reduced and its round 2 posted, and
the one before that is decoded: the same order of messages on all ranks.

On the CPU a thread of its own does all this. On a CUDA device the caller's thread queues it on streams.
"""

import atexit
import queue
import threading
import time
import weakref

import torch

from . import library

_THREAD = "lpsgd"


class _Bucket:
    """What is kept for a bucket of DistributedDataParallel from step to step."""

    def __init__(self, key, number, copy):
        self.key, self.number = key, number
        self.copy = copy  # its gradients in float32, if they are of another type
        self.address = 0  # of its gradients as DistributedDataParallel keeps them
        self.outgoing, self.incoming, self.returning, self.means = {}, {}, {}, {}  # messages, by rank
        self.bytes_sent = 0


class _Job:
    """A bucket in one step."""

    def __init__(self, index, buffer, numbers, gradients, last, future):
        self.index, self.buffer, self.numbers, self.last, self.future = index, buffer, numbers, last, future
        item = buffer.element_size()
        self.offsets = [(g.data_ptr() - buffer.data_ptr()) // item * 4 for g in gradients]  # in float32's bytes
        self.is_empty = buffer.numel() == 0  # of parameters without values: there is nothing to exchange
        self.bucket = None
        self.works = []  # its messages on their way


class Pipeline:
    def __init__(self, coder, transport):
        self._coder, self._transport = coder, transport
        self._buckets = {}  # by DistributedDataParallel's index
        self._dropped = []  # numbers of buckets that are not used any more
        self._open = False
        self._step = 0
        self._encoded = None  # the job whose round 1 is on its way
        self._reduced = None  # the one whose round 2 is on its way
        self._under_way = []  # all of the step
        self._failed = None
        self._closed = False
        self._wait = 0.0
        self._queue = self._stop = None  # of the thread
        self.bytes_sent = 0

    def begin(self, step):
        if self._closed:
            raise RuntimeError("lpsgd: the exchange of this model's gradients is closed")
        if self._open:
            raise RuntimeError(
                "lpsgd: the backward pass before this one has not exchanged all its gradients; after an error in it, "
                "training cannot go on with this model"
            )
        self._open = True
        self._step = step
        with self._transport.on_device():
            self._coder.begin(step)

    def start(self, index, buffer, numbers, gradients, last):
        """Exchanges a bucket: `buffer` holds the `gradients` of the tensors with these numbers. Returns the future of their
        means, which comes when the step's exchange is done."""
        if self._transport.cuda:
            future = torch.futures.Future(devices=[self._transport.device])
            self._queue_on_gpu(_Job(index, buffer, numbers, gradients, last, future))
            return future
        if self._queue is None:
            self._queue = queue.Queue()
            thread = threading.Thread(target=_serve, args=(self._queue,), name=_THREAD, daemon=True)
            thread.start()
            self._stop = weakref.finalize(self, _end_thread, self._queue, thread)
        future = torch.futures.Future()
        self._queue.put((self, _Job(index, buffer, numbers, gradients, last, future)))
        # An exception reaches the backward pass only from a callback.
        return future.then(_take)

    def close(self):
        """Ends the thread. Residuals can be read afterwards."""
        self._closed = True
        if self._stop:
            self._stop()

    def require_idle(self):
        """Waits for the end of a step's exchange."""
        if self._queue:
            self._queue.join()
        if self._failed:
            raise self._failed
        if self._open:
            raise RuntimeError("lpsgd: the last backward pass has not exchanged all its gradients")

    def take_wait(self):
        wait, self._wait = self._wait, 0.0
        return wait

    def run(self, job):
        """On the exchange's own thread."""
        jobs = self._under_way
        jobs.append(job)
        try:
            if self._failed:
                raise self._failed
            if not job.is_empty:
                self._find_bucket(job)
                self._read(job)
                self._advance(job)
            if not job.last:
                return
            self._end()
            for done in jobs:
                self._write(done)
        except Exception as cause:
            self._fail(cause)
        jobs.clear()

    def _fail(self, cause):
        if self._failed is None:
            self._failed = RuntimeError(
                f"lpsgd: the exchange of gradients failed in step {self._step}: {cause}"
            )
            self._failed.__cause__ = cause
        for job in self._under_way:  # the backward pass waits for all of them
            if not job.future.done():
                job.future.set_result(self._failed)
        self._encoded = self._reduced = None

    def _queue_on_gpu(self, job):
        """Coding and messages wait for each other on streams."""
        transport = self._transport
        gradients = transport.gradient_stream
        gradients.wait_stream(torch.cuda.current_stream(transport.device))
        try:
            with transport.on_device():
                self._under_way.append(job)
                if not job.is_empty:
                    self._find_bucket(job)
                    with torch.cuda.stream(gradients):
                        self._read(job)
                with torch.cuda.stream(transport.message_stream):
                    if not job.is_empty:
                        self._advance(job)
                    if job.last:
                        self._end()
                with torch.cuda.stream(gradients):
                    for done in self._under_way if job.last else ():
                        self._write(done)
        except Exception as error:
            self._failed = error
            raise
        if job.last:
            self._under_way.clear()

    def _find_bucket(self, job):
        """It stays the same until DistributedDataParallel changes its buckets."""
        buffer = job.buffer
        key = (buffer.numel(), buffer.dtype, tuple(job.numbers), tuple(job.offsets))
        bucket = self._buckets.get(job.index)
        copied = buffer.dtype != torch.float32
        if bucket is None or bucket.key != key or (self._transport.cuda and bucket.address != buffer.data_ptr()):
            if bucket is not None:
                self._dropped.append(bucket.number)
            copy = torch.empty_like(buffer, dtype=torch.float32) if copied else None
            bucket = self._buckets[job.index] = self._make_bucket(key, job, copy)
        elif not copied and bucket.address != buffer.data_ptr():
            self._coder.move_bucket(bucket.number, [buffer.data_ptr() + at for at in job.offsets])
        bucket.address = buffer.data_ptr()
        job.bucket = bucket
        self.bytes_sent += bucket.bytes_sent

    def _make_bucket(self, key, job, copy):
        start = (job.buffer if copy is None else copy).data_ptr()
        addresses = [start + at for at in job.offsets]
        number = self._transport.with_room(lambda: self._coder.add_bucket(job.numbers, addresses))
        bucket = _Bucket(key, number, copy)
        rank, ranks = self._coder.rank, self._coder.ranks

        def view(which, peer):
            return self._transport.view(*self._coder.message(number, which, peer), owner=self._coder)

        for shift in range(1, ranks):  # ranks begin with different peers
            peer = (rank + shift) % ranks
            bucket.outgoing[peer] = view(library.OUTGOING, peer)
            bucket.incoming[peer] = view(library.INCOMING, peer)
            bucket.returning[peer] = view(library.MEAN, rank)
            bucket.means[peer] = view(library.MEAN, peer)
        bucket.bytes_sent = sum(m.numel() for m in (*bucket.outgoing.values(), *bucket.returning.values()))
        return bucket

    @staticmethod
    def _read(job):
        if job.bucket.copy is not None:
            job.bucket.copy.copy_(job.buffer)

    @staticmethod
    def _write(job):
        if job.bucket is not None and job.bucket.copy is not None:
            job.buffer.copy_(job.bucket.copy)
        job.future.set_result(job.buffer)

    def _advance(self, job):
        """Encodes this bucket, if any, reduces the one before it and decodes the one before that."""
        if job is not None:
            bucket = job.bucket
            self._coder.encode(bucket.number)
            job.works = self._transport.post(bucket.outgoing, bucket.incoming, 2 * job.index)
        encoded, self._encoded = self._encoded, job
        if encoded is not None:
            bucket = encoded.bucket
            self._wait_for(encoded)
            self._coder.reduce(bucket.number)
            encoded.works = self._transport.post(bucket.returning, bucket.means, 2 * encoded.index + 1)
        reduced, self._reduced = self._reduced, encoded
        if reduced is not None:
            self._wait_for(reduced)
            self._coder.decode(reduced.bucket.number)

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


def _take(future):
    value = future.value()
    if isinstance(value, Exception):
        raise value
    return value


def _end_thread(jobs, thread):
    """At the end of the program, too: Python aborts it if a thread is in PyTorch's code then. A thread that waits for a
    rank that has failed does not come; the program ends without it."""
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(timeout=2)


@atexit.register
def _wait_for_threads():
    """A thread may hold the last references of an exchange, and of process groups, whose end takes PyTorch a while."""
    for thread in threading.enumerate():
        if thread.name == _THREAD:
            thread.join(timeout=2)


def _serve(jobs):
    while (given := jobs.get()) is not None:
        pipeline, job = given
        pipeline.run(job)
        del given, pipeline, job  # the next may never come
        jobs.task_done()
    jobs.task_done()  # of the end
