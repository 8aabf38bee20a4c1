// How kernels are launched: LPSGD_LAUNCH(kernel, blocks, threads, stream)(arguments...), with the kernel's
// template arguments given. In builds against the emulated GPU (tests/emulated) its device.h has defined it.
#pragma once

#ifndef LPSGD_LAUNCH
#define LPSGD_LAUNCH(kernel, blocks, threads, stream) kernel<<<blocks, threads, 0, stream>>>
#endif
