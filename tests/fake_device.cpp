// A device that is host memory under another name. Its tensors refuse numpy() and refuse to be mixed with others,
// and what the program copies to or from them is counted. Everything else is the CPU's work on the same memory.
// torch/extension.h, with all of torch and pybind11 in it, would take twice as long to compile.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {
constexpr auto FAKE = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);
std::atomic<int64_t> crossed{0};        // bytes, since they were last asked for
thread_local bool falling_back = false;  // copies that are ours, not the program's

struct Memory final : c10::Allocator {
  static void release(void* p) { std::free(p); }
  c10::DataPtr allocate(size_t bytes) override {
    void* p = bytes ? std::aligned_alloc(64, (bytes + 63) & ~size_t(63)) : nullptr;
    return {p, p, &release, c10::Device(FAKE, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} memory;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return {FAKE, 0}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto grown = memory.allocate(bytes);
    if (storage.nbytes()) std::memcpy(grown.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

at::Tensor as_host(const at::Tensor& t) {  // the same memory
  if (!t.is_privateuseone()) return t;
  return at::from_blob(t.mutable_data_ptr(), t.sizes(), t.strides(), [t](void*) {}, t.options().device(at::kCPU));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, KEYS, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           KEYS, c10::dtype_or_default(type));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (!falling_back && from.device() != to.device()) crossed += from.nbytes();
  as_host(to).copy_(as_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar scalar(const at::Tensor& t) {
  crossed += t.nbytes();
  return at::native::_local_scalar_dense_cpu(as_host(t));
}

void refuse_mixing(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  auto check = [&](const at::Tensor& t) {
    TORCH_CHECK(!t.defined() || t.is_privateuseone() || t.dim() == 0, op.schema().name(),
                " mixes tensors of the CPU and of the fake device");
  };
  const auto count = op.schema().arguments().size();
  for (const auto& value : torch::jit::last(stack, count)) {
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList()) for (const at::Tensor& t : value.toTensorVector()) check(t);
    if (value.isOptionalTensorList())
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) if (t) check(*t);
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  struct Ours {
    bool before = falling_back;
    Ours() { falling_back = true; }
    ~Ours() { falling_back = before; }
  };
  refuse_mixing(op, *stack);
  Ours ours;
  at::native::cpu_fallback(op, stack, true, c10::DispatchKey::CPU);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {  // one device, one stream, nothing to wait for
  static c10::Stream only() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(FAKE, 0)); }
  c10::DeviceType type() const override { return FAKE; }
  c10::Device exchangeDevice(c10::Device) const override { return {FAKE, 0}; }
  c10::Device getDevice() const override { return {FAKE, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return only(); }
  c10::Stream getNewStream(c10::Device, int) const override { return only(); }
  c10::Stream exchangeStream(c10::Stream) const override { return only(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", scalar);
  m.impl("view", [](const at::Tensor& t, c10::SymIntArrayRef size) {
    return at::native::view(t, C10_AS_INTARRAYREF_SLOW(size));
  });
  m.impl("unfold", at::native::unfold);
  m.impl("as_strided", [](const at::Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                          std::optional<c10::SymInt> first) {
    std::optional<int64_t> at = first ? std::optional<int64_t>(first->expect_int()) : std::nullopt;
    return at::native::as_strided_tensorimpl(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), at);
  });
  m.impl("_reshape_alias", [](const at::Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    return at::native::_reshape_alias(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  });
  m.impl("resize_", [](const at::Tensor& t, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format)
                        -> const at::Tensor& { return at::native::resize_(t, C10_AS_INTARRAYREF_SLOW(size), format); });
  m.impl("set_.source_Storage_storage_offset",
         [](at::Tensor& t, at::Storage storage, c10::SymInt first, c10::SymIntArrayRef size,
            c10::SymIntArrayRef stride) -> at::Tensor& {
           return at::native::set_storage_cpu_(t, storage, first.expect_int(), C10_AS_INTARRAYREF_SLOW(size),
                                               C10_AS_INTARRAYREF_SLOW(stride));
         });
}

TORCH_LIBRARY(fake, m) {
  c10::SetAllocator(FAKE, &memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("crossed() -> int", [] { return crossed.exchange(0); });  // bytes between device and host since
}
}  // namespace
