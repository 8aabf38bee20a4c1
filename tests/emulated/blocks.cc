// The blocks of a launch. A block's threads are fibers of one thread of the host.
#include <array>
#include <cstdlib>
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

// Saves the callee-saved registers and the stack pointer of this fiber, and resumes another.
extern "C" void lpsgd_switch_stack(void** save, void* to);
asm(R"(
.text
.type lpsgd_switch_stack, @function
lpsgd_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size lpsgd_switch_stack, .-lpsgd_switch_stack
)");

namespace lpsgd::emulated {
namespace {

// Not a power of two, or the tops of all stacks would share a few lines of the processor's cache.
constexpr std::size_t stack_bytes = (64 << 10) + 17 * 64;

struct Fiber {
  Thread thread;
  std::unique_ptr<std::byte[]> stack{new std::byte[stack_bytes]};
  void* stack_pointer = nullptr;  // while it waits
  bool finished = true;
  bool waiting = false;
  Barrier barrier = Barrier::sync_warp;
  unsigned exchanges = 0;  // with its warp
};

using WarpValues = std::array<std::uint64_t, 32>;  // a lane's at its number

struct Block {
  std::vector<Fiber> fibers;
  std::size_t running = 0, count = 0;
  void* scheduler = nullptr;
  const std::function<void()>* kernel = nullptr;
  std::array<std::array<WarpValues, 2>, 32> values{};  // by warp: of even and odd exchanges
  bool any = false, any_before = false;  // predicates: of the barrier being waited for, and of the one before

  void yield() { lpsgd_switch_stack(&fibers[running].stack_pointer, scheduler); }
};
thread_local Block block;

void fiber_body() {
  (*block.kernel)();
  block.fibers[block.running].finished = true;
  block.yield();
  undefined("a thread that has exited was resumed");
}

void prepare(Fiber& fiber) {
  auto* top = reinterpret_cast<void**>(fiber.stack.get() + stack_bytes);
  *--top = nullptr;  // keeps the stack aligned as a call would
  *--top = reinterpret_cast<void*>(&fiber_body);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber.stack_pointer = top;
  fiber.finished = fiber.waiting = false;
  fiber.exchanges = 0;
}

/// Releases fibers [first, last) if all wait at the same barrier. Whether they did.
bool release(std::size_t first, std::size_t last, bool whole_block) {
  std::size_t waiting = 0, finished = 0;
  for (std::size_t i = first; i < last; ++i) {
    const Fiber& f = block.fibers[i];
    finished += f.finished;
    waiting += f.waiting && (f.barrier == Barrier::sync_block) == whole_block;
  }
  if (waiting == 0) return false;
  if (finished > 0) undefined("some threads wait for others that have exited");
  if (waiting < last - first) return false;
  for (std::size_t i = first; i < last; ++i) {
    if (block.fibers[i].barrier != block.fibers[first].barrier)
      undefined("lanes of a warp wait at different operations");
    block.fibers[i].waiting = false;
  }
  if (whole_block) block.any_before = std::exchange(block.any, false);
  return true;
}

void run_block(std::size_t threads) {
  block.count = threads;
  while (block.fibers.size() < threads) block.fibers.emplace_back();
  for (std::size_t i = 0; i < threads; ++i) prepare(block.fibers[i]);
  for (;;) {
    bool progress = false, running = false;
    // The order of the warps changes, so that none always runs first.
    static thread_local std::size_t turn = 0;
    const std::size_t warps = threads / 32, first_warp = turn++ % warps;
    for (std::size_t w = 0; w < warps; ++w) {
      const std::size_t first = (first_warp + w) % warps * 32;
      do {
        for (std::size_t i = first; i < first + 32; ++i) {
          Fiber& f = block.fibers[i];
          if (f.finished || f.waiting) continue;
          block.running = i;
          current = &f.thread;
          lpsgd_switch_stack(&block.scheduler, f.stack_pointer);
          progress = true;
        }
      } while (release(first, first + 32, false));
    }
    if (release(0, threads, true)) progress = true;
    for (std::size_t i = 0; i < threads; ++i) running |= !block.fibers[i].finished;
    if (!running) return;
    if (!progress) undefined("threads wait at different barriers");
  }
}

}  // namespace

thread_local Thread* current = nullptr;

const std::uint64_t* wait_for_warp(Barrier operation, std::uint64_t value) {
  Fiber& fiber = block.fibers[block.running];
  WarpValues& values = block.values[block.running / 32][fiber.exchanges++ % 2];
  values[block.running % 32] = value;
  fiber.barrier = operation;
  fiber.waiting = true;
  block.yield();
  return values.data();
}

void wait_for_lanes(Barrier operation) {
  Fiber& fiber = block.fibers[block.running];
  fiber.barrier = operation;
  fiber.waiting = true;
  block.yield();
}

bool wait_for_block(bool predicate) {
  Fiber& fiber = block.fibers[block.running];
  fiber.barrier = Barrier::sync_block;
  fiber.waiting = true;
  block.any = block.any || predicate;
  block.yield();
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
constexpr std::size_t default_shared = 48 << 10, most_shared = 227 << 10;

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
