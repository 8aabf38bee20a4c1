"""Ctrl-C ends a command without a traceback, also while it loads its modules. The lpsgd program starts Python with
the signal blocked; from here on it ends the process, and within main it is a KeyboardInterrupt."""

import signal

_BEFORE = signal.getsignal(signal.SIGINT)
if _BEFORE is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def raise_from_now_on():
    signal.signal(signal.SIGINT, _BEFORE)
