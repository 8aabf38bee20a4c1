// The blocks of a launch. A block's threads are fibers of one thread of the host.
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "tests/emulated/device.h"
#include "tests/emulated/machine.h"

#undef threadIdx
#undef blockIdx

namespace lpsgd::emulated {

thread_local Thread* current = nullptr;

namespace {

// Not a power of two, or the tops of all stacks would share a few lines of the processor's cache.
constexpr std::size_t stack_bytes = (64 << 10) + 17 * 64;

struct Fiber {
  Thread thread;
  std::unique_ptr<std::byte[]> stack{new std::byte[stack_bytes]};
  void* stack_pointer = nullptr;  // while it does not run
  unsigned exchanges = 0;         // with its warp
};

using Lanes = std::uint32_t;  // one bit for each
constexpr Lanes all_lanes = ~Lanes{0};
using WarpValues = std::array<std::uint64_t, 32>;  // a lane's at its number

struct Warp {
  Lanes finished = 0, wait_for_warp = 0, wait_for_block = 0;
  Barrier operation = Barrier::sync_warp;  // that the lanes in wait_for_warp have arrived at
  std::array<WarpValues, 2> values{};      // of even and odd exchanges

  Lanes ready() const { return ~(finished | wait_for_warp | wait_for_block); }
};

struct Block {
  std::vector<Fiber> fibers;
  std::array<Warp, 32> warps{};
  std::size_t running = 0;  // a fiber's index
  void* scheduler = nullptr;
  const std::function<void()>* kernel = nullptr;
  bool any = false, any_before = false;  // predicates: of the barrier being waited for, and of the one before

  Warp& warp() { return warps[running / 32]; }
  Lanes lane() const { return Lanes{1} << running % 32; }
};
thread_local Block block;

/// Saves this fiber's state on its stack and goes on with another. All registers count as changed, so the
/// compiler saves those in use. It is part of its caller and ends in a jump: a processor foresees where to,
/// as lanes wait at the same place, and it would not foresee a return on another stack.
[[gnu::always_inline]] inline void switch_stack(void** save, void* to) {
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n"  // what a function may use below its stack
      "pushq %%rbp\n"
      "leaq 1f(%%rip), %%rax\n"
      "pushq %%rax\n"
      "movq %%rsp, (%%rdi)\n"
      "movq %%rsi, %%rsp\n"
      "popq %%rax\n"
      "jmp *%%rax\n"
      "1:\n"
      "popq %%rbp\n"
      "leaq 128(%%rsp), %%rsp"
      : "+D"(save), "+S"(to)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
        "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
        "xmm14", "xmm15", "cc", "memory");
}

[[gnu::always_inline]] inline void go_to(std::size_t fiber, void** save) {
  block.running = fiber;
  Fiber& next = block.fibers[fiber];
  current = &next.thread;
  switch_stack(save, next.stack_pointer);
}

/// Goes on with the next lane of the warp that is ready, or with the scheduler.
[[gnu::always_inline]] inline void yield() {
  void** save = &block.fibers[block.running].stack_pointer;
  const Lanes later = block.warp().ready() & ~(block.lane() | (block.lane() - 1));
  if (later == 0)
    switch_stack(save, block.scheduler);
  else
    go_to(block.running / 32 * 32 + static_cast<std::size_t>(std::countr_zero(later)), save);
}

void fiber_body() {
  (*block.kernel)();
  block.warp().finished |= block.lane();
  yield();
  undefined("a thread that has exited was resumed");
}

void prepare(Fiber& fiber) {
  auto* top = reinterpret_cast<void**>(fiber.stack.get() + stack_bytes);
  *--top = nullptr;  // keeps the stack aligned as a call would
  *--top = reinterpret_cast<void*>(&fiber_body);
  fiber.stack_pointer = top;
  fiber.exchanges = 0;
}

constexpr const char* waits_for_exited = "some threads wait for others that have exited";

/// Releases the lanes of a warp if all have arrived. Whether they did.
bool release_warp(Warp& warp) {
  if (warp.wait_for_warp == 0) return false;
  if (warp.finished != 0) undefined(waits_for_exited);
  if (warp.wait_for_warp != all_lanes) return false;
  warp.wait_for_warp = 0;
  return true;
}

/// The same for the block's barrier.
bool release_block(std::size_t warps) {
  Lanes any_waits = 0, any_finished = 0, all_wait = all_lanes;
  for (std::size_t w = 0; w < warps; ++w) {
    any_waits |= block.warps[w].wait_for_block;
    all_wait &= block.warps[w].wait_for_block;
    any_finished |= block.warps[w].finished;
  }
  if (any_waits == 0) return false;
  if (any_finished != 0) undefined(waits_for_exited);
  if (all_wait != all_lanes) return false;
  for (std::size_t w = 0; w < warps; ++w) block.warps[w].wait_for_block = 0;
  block.any_before = std::exchange(block.any, false);
  return true;
}

void run_block(std::size_t threads) {
  const std::size_t warps = threads / 32;
  for (std::size_t i = 0; i < threads; ++i) prepare(block.fibers[i]);
  for (std::size_t w = 0; w < warps; ++w)
    block.warps[w].finished = block.warps[w].wait_for_warp = block.warps[w].wait_for_block = 0;
  for (;;) {
    bool progress = false;
    // The order of the warps changes, so that none always runs first.
    static thread_local std::size_t turn = 0;
    const std::size_t first_warp = turn++ % warps;
    for (std::size_t i = 0; i < warps; ++i) {
      const std::size_t w = (first_warp + i) % warps;
      Warp& warp = block.warps[w];
      do {
        if (warp.ready() == 0) continue;
        go_to(w * 32 + static_cast<std::size_t>(std::countr_zero(warp.ready())), &block.scheduler);
        progress = true;
      } while (release_warp(warp));
    }
    if (release_block(warps)) progress = true;
    bool finished = true;
    for (std::size_t w = 0; w < warps; ++w) finished &= block.warps[w].finished == all_lanes;
    if (finished) return;
    if (!progress) undefined("threads wait at different barriers");
  }
}

}  // namespace

void wait_for_lanes(Barrier operation) {
  Warp& warp = block.warp();
  if (warp.wait_for_warp == 0)
    warp.operation = operation;
  else if (warp.operation != operation)
    undefined("lanes of a warp wait at different operations");
  warp.wait_for_warp |= block.lane();
  yield();
}

const std::uint64_t* wait_for_warp(Barrier operation, std::uint64_t value) {
  WarpValues& values = block.warp().values[block.fibers[block.running].exchanges++ % 2];
  values[block.running % 32] = value;
  wait_for_lanes(operation);
  return values.data();
}

bool wait_for_block(bool predicate) {
  block.warp().wait_for_block |= block.lane();
  block.any = block.any || predicate;
  yield();
  return block.any_before;
}

namespace {

thread_local unsigned char* shared_memory = nullptr;

void run_blocks(dim3 blocks, dim3 threads, std::size_t shared, const std::function<void()>& kernel) {
  const unsigned count = threads.x * threads.y;
  constexpr std::align_val_t alignment{128};
  // Of the exact size, so that AddressSanitizer finds accesses behind it.
  shared_memory = static_cast<unsigned char*>(operator new(shared, alignment));
  while (block.fibers.size() < count) block.fibers.emplace_back();
  block.kernel = &kernel;
  for (unsigned y = 0; y < blocks.y; ++y)
    for (unsigned x = 0; x < blocks.x; ++x) {
      for (unsigned t = 0; t < count; ++t)
        block.fibers[t].thread = {{t % threads.x, t / threads.x, 0}, {x, y, 0}, threads, blocks};
      std::memset(shared_memory, 0xff, shared);
      run_block(count);
    }
  operator delete(std::exchange(shared_memory, nullptr), alignment);
}

std::mutex allowed_mutex;
std::map<const void*, std::size_t> allowed_shared;  // bytes, where a kernel may take more than others
// The least of all devices from compute capability 8.0 on.
constexpr std::size_t default_shared = 48 << 10, most_shared = 99 << 10;

bool may_take(const void* function, std::size_t shared) {
  const std::lock_guard lock(allowed_mutex);
  const auto at = allowed_shared.find(function);
  return shared <= (at == allowed_shared.end() ? default_shared : at->second);
}

}  // namespace

unsigned char* launched_shared() {
  return shared_memory;
}

void launch(dim3 blocks, dim3 threads, std::size_t shared, cudaStream_t stream, const void* function,
            std::function<void()> kernel) {
  const unsigned count = threads.x * threads.y;
  if (blocks.x == 0 || blocks.y == 0 || blocks.y > 65535 || blocks.x > 0x7fffffff || blocks.z != 1 ||
      count == 0 || count > 1024 || threads.z != 1) {
    fail(cudaErrorInvalidConfiguration);
    return;
  }
  if (!may_take(function, shared)) {
    fail(cudaErrorInvalidValue);
    return;
  }
  if (count % 32 != 0) undefined("a block that is not made of whole warps");
  queue_kernel(stream, [=, kernel = std::move(kernel)] { run_blocks(blocks, threads, shared, kernel); });
}

}  // namespace lpsgd::emulated

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int value) {
  using namespace lpsgd::emulated;
  if (value < 0 || static_cast<std::size_t>(value) > most_shared) return fail(cudaErrorInvalidValue);
  const std::lock_guard lock(allowed_mutex);
  allowed_shared[function] = static_cast<std::size_t>(value);
  return cudaSuccess;
}
