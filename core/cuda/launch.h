// How kernels are launched: LPSGD_LAUNCH(kernel, blocks, threads, stream)(arguments...), with the kernel's
// template arguments given. LPSGD_LAUNCH_SHARED also gives each block so many bytes of shared memory, which
// the kernel names by LPSGD_LAUNCHED_SHARED(name): an array of unsigned char, aligned to 16 bytes. Above
// 48 KiB the kernel must have been allowed to take them (cudaFuncSetAttribute). In builds against the
// emulated GPU (tests/emulated) its device.h has defined these.
#pragma once

#ifndef LPSGD_LAUNCH
#define LPSGD_LAUNCH(kernel, blocks, threads, stream) kernel<<<blocks, threads, 0, stream>>>
#define LPSGD_LAUNCH_SHARED(kernel, blocks, threads, bytes, stream) kernel<<<blocks, threads, bytes, stream>>>
#define LPSGD_LAUNCHED_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
