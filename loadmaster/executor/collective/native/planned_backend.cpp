// A backend of torch.distributed whose planned calls are launches: what stands between a program and its kernel.
//
// A call is looked up by collective, operator, type and size. What it finds was decided once, in Python, by the same rules
// as everywhere: launches, or the inner backend. A launch writes two addresses into a structure that is there already and
// hands it to the driver; no Python runs, nothing is allocated. All else (barriers, sends and receives, lists, coalesced
// calls of several tensors) is the inner backend's.
//
// Only headers of torch that know no kind of device are used, so this compiles without a CUDA toolkit; what launches is an
// address that is given (cuLaunchKernel's, or that of a test).

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "launched_work.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

namespace {

namespace py = pybind11;
using namespace loadmaster;
using Begun = c10::intrusive_ptr<Work>;

class PlannedBackend : public c10d::Backend {
 public:
  // choose(collective, root, op, tensor, size_bytes, region) -> (detail, planned, input bytes, output bytes, launches);
  // order(stream): it is about to be used, after others; failed(): raises what a kernel waited for in vain.
  // `last_stream` and `failure` are addresses that Python keeps: of the last stream's handle, and of a flag.
  PlannedBackend(
      int rank, int size, c10::intrusive_ptr<c10d::Backend> inner, c10::Device device, uintptr_t enqueue,
      uintptr_t last_stream, uintptr_t failure, py::object choose, py::object order, py::object failed)
      : c10d::Backend(rank, size), inner_(std::move(inner)), device_(device),
        enqueue_(reinterpret_cast<Enqueue>(enqueue)), last_stream_(reinterpret_cast<int64_t*>(last_stream)),
        failure_(reinterpret_cast<volatile int64_t*>(failure)), choose_(std::move(choose)), order_(std::move(order)),
        failed_(std::move(failed)) {}

  ~PlannedBackend() override {
    py::gil_scoped_acquire gil;
    choose_ = py::object();
    order_ = py::object();
    failed_ = py::object();
  }

  Begun allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return all_reduce(tensors, opts, [&] { return inner_->allreduce(tensors, opts); });
  }
  Begun allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return all_reduce(tensors, opts, [&] { return inner_->allreduce_coalesced(tensors, opts); });
  }
  Begun _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    Call call{ALLGATHER, c10d::OpType::_ALLGATHER_BASE, &output, &input, output.nbytes(), opts.asyncOp};
    return run(call, [&] { return inner_->_allgather_base(output, input, opts); });
  }
  Begun allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    auto inner = [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, opts); };
    if (outputs.size() != 1 || inputs.size() != 1) {
      return fall_back(ALLGATHER, "coalesced", inner);
    }
    Call call{ALLGATHER, c10d::OpType::COALESCED, &outputs[0], &inputs[0], outputs[0].nbytes(), opts.asyncOp};
    return run(call, inner);
  }
  Begun _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    Call call{REDUCE_SCATTER, c10d::OpType::_REDUCE_SCATTER_BASE, &output, &input, input.nbytes(), opts.asyncOp,
              &opts.reduceOp};
    return run(call, [&] { return inner_->_reduce_scatter_base(output, input, opts); });
  }
  Begun reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    auto inner = [&] { return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, opts); };
    if (outputs.size() != 1 || inputs.size() != 1) {
      return fall_back(REDUCE_SCATTER, "coalesced", inner);
    }
    Call call{REDUCE_SCATTER, c10d::OpType::COALESCED, &outputs[0], &inputs[0], inputs[0].nbytes(), opts.asyncOp,
              &opts.reduceOp};
    return run(call, inner);
  }
  Begun alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& opts) override {
    auto inner = [&] { return inner_->alltoall_base(output, input, output_splits, input_splits, opts); };
    if (!output_splits.empty() || !input_splits.empty()) {
      return fall_back(ALLTOALL, "split sizes", inner);
    }
    Call call{ALLTOALL, c10d::OpType::ALLTOALL_BASE, &output, &input, input.nbytes(), opts.asyncOp};
    return run(call, inner);
  }
  Begun broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    auto inner = [&] { return inner_->broadcast(tensors, opts); };
    if (tensors.size() != 1) {
      return fall_back(BROADCAST, "form of call", inner);
    }
    Call call{BROADCAST, c10d::OpType::BROADCAST, &tensors[0], opts.rootRank == rank_ ? &tensors[0] : nullptr,
              tensors[0].nbytes(), opts.asyncOp};
    call.root = opts.rootRank;
    return run(call, inner);
  }
  Begun reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    auto inner = [&] { return inner_->reduce(tensors, opts); };
    if (tensors.size() != 1) {
      return fall_back(REDUCE, "form of call", inner);
    }
    Call call{REDUCE, c10d::OpType::REDUCE, opts.rootRank == rank_ ? &tensors[0] : nullptr, &tensors[0],
              tensors[0].nbytes(), opts.asyncOp, &opts.reduceOp};
    call.root = opts.rootRank;
    return run(call, inner);
  }
  Begun barrier(const c10d::BarrierOptions& opts) override {
    if (side_ && !opts.asyncOp) {
      c10::Event over(device_.type());
      over.record(*side_);
      over.block(current());
    }
    return inner_->barrier(opts);
  }

  // The inner backend's, as they are.

  Begun allgather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return fall_back(ALLGATHER, "list", [&] { return inner_->allgather(outputs, inputs, opts); });
  }
  Begun allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return fall_back(ALLGATHER, "list", [&] { return inner_->allgather_coalesced(outputs, inputs, opts); });
  }
  Begun reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    return fall_back(REDUCE_SCATTER, "list", [&] { return inner_->reduce_scatter(outputs, inputs, opts); });
  }
  Begun alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    return fall_back(ALLTOALL, "list", [&] { return inner_->alltoall(outputs, inputs, opts); });
  }
  Begun gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    return fall_back("gather", "list", [&] { return inner_->gather(outputs, inputs, opts); });
  }
  Begun scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    return fall_back("scatter", "list", [&] { return inner_->scatter(outputs, inputs, opts); });
  }
  Begun allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return inner_->allreduce_sparse(tensors, opts);
  }
  Begun send(Tensors& tensors, int to, int tag) override { return inner_->send(tensors, to, tag); }
  Begun recv(Tensors& tensors, int from, int tag) override { return inner_->recv(tensors, from, tag); }
  Begun recvAnysource(Tensors& tensors, int tag) override { return inner_->recvAnysource(tensors, tag); }
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool all) override { inner_->monitoredBarrier(opts, all); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return inner_->supportsTimeEstimation(); }
  void startCoalescing() override {
    inner_->startCoalescing();
    coalescing_ = true;
  }
  Begun endCoalescing() override {
    coalescing_ = false;
    return inner_->endCoalescing();
  }
  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  void waitForPendingWorks() override { inner_->waitForPendingWorks(); }
  c10d::ErrorType getError() override { return inner_->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return inner_->getMemAllocator(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return inner_->allocateTensor(size, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex index) override { return inner_->supportsTensorAlloc(index); }
  void abort() override { inner_->abort(); }
  // The inner backend is its own group's to shut down.
  void shutdown() override { on_ = false; }

  // Memory that all ranks share.
  void share(uintptr_t begin, uintptr_t end, int64_t region) {
    std::lock_guard<std::mutex> lock(mutex_);
    regions_.push_back({begin, end, region});
  }

  // Decide everything again, and count from here.
  void forget() {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.clear();
    fell_back_.clear();
  }

  // (collective, detail, by plan?, calls), in no order.
  std::vector<std::tuple<std::string, std::string, bool, int64_t>> counts() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::tuple<std::string, std::string, bool, int64_t>> found;
    for (auto& [key, entry] : entries_) {
      found.emplace_back(key.collective, entry.detail, entry.planned, entry.calls.load());
    }
    for (auto& [of, calls] : fell_back_) {
      found.emplace_back(of.first, of.second, false, calls);
    }
    return found;
  }

 private:
  template <typename Inner>
  Begun all_reduce(Tensors& tensors, const c10d::AllreduceOptions& opts, Inner inner) {
    if (tensors.size() != 1) {
      return fall_back(ALLREDUCE, "coalesced", inner);
    }
    Call call{ALLREDUCE, c10d::OpType::ALLREDUCE, &tensors[0], &tensors[0], tensors[0].nbytes(), opts.asyncOp,
              &opts.reduceOp};
    return run(call, inner);
  }

  template <typename Inner>
  Begun fall_back(const char* collective, const char* why, Inner inner) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++fell_back_[{collective, why}];
    }
    return inner();
  }

  template <typename Inner>
  Begun run(const Call& call, Inner inner) {
    if (coalescing_ || !on_) {
      return fall_back(call.collective, coalescing_ ? "coalesced" : "switched off", inner);
    }
    const at::Tensor& one = call.output ? *call.output : *call.input;
    for (const at::Tensor* tensor : {call.output, call.input}) {
      if (tensor && (tensor->layout() != c10::kStrided || !tensor->is_contiguous())) {
        return fall_back(call.collective, "not contiguous", inner);
      }
      if (tensor && (tensor->device() != device_ || tensor->scalar_type() != one.scalar_type())) {
        return fall_back(call.collective, "device or type", inner);
      }
    }
    Entry& entry = entry_of(call, one);
    if (!entry.planned || bytes_of(call.input) != entry.input_bytes || bytes_of(call.output) != entry.output_bytes) {
      ++entry.calls;  // Of other sizes than a collective has: the inner backend refuses them in its own words.
      return inner();
    }
    if (*failure_) {
      py::gil_scoped_acquire gil;
      failed_();
    }
    ++entry.calls;
    c10::Stream stream = current();
    bool later = call.later && !device_.is_cpu();
    if (later) {
      stream = side(stream);
    }
    enqueue(entry, call, stream);
    if (later) {
      c10::impl::VirtualGuardImpl impl(device_.type());
      for (const at::Tensor* tensor : {call.output, call.input}) {
        if (tensor) {
          impl.recordDataPtrOnStream(tensor->storage().data_ptr(), stream);
        }
      }
    }
    return c10::make_intrusive<LaunchedWork>(rank_, call.type, Tensors{one}, stream, later);
  }

  Entry& entry_of(const Call& call, const at::Tensor& one) {
    int op = call.op ? static_cast<int>(static_cast<c10d::ReduceOp::RedOpType>(*call.op)) : -1;
    Key key{call.collective, call.root, op, one.scalar_type(), call.size_bytes, -1};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      key.region = region_of(call.collective == REDUCE_SCATTER ? call.input : call.output);
      auto found = entries_.find(key);
      if (found != entries_.end()) {
        return found->second;
      }
    }
    py::gil_scoped_acquire gil;
    py::object reduce_op = call.op ? py::cast(*call.op) : py::none();
    auto made = choose_(call.collective, call.root, reduce_op, one, call.size_bytes, key.region)
                    .cast<std::tuple<
                        std::string, bool, size_t, size_t,
                        std::vector<std::tuple<uintptr_t, unsigned, unsigned, uintptr_t, uint64_t>>>>();
    py::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key];
    if (entry.detail.empty()) {
      entry.detail = std::get<0>(made);
      entry.planned = std::get<1>(made);
      entry.input_bytes = std::get<2>(made);
      entry.output_bytes = std::get<3>(made);
      for (auto& [function, blocks, threads, fields, begin] : std::get<4>(made)) {
        entry.launches.push_back(
            {reinterpret_cast<void*>(function), blocks, threads, reinterpret_cast<uint64_t*>(fields), begin});
      }
    }
    return entry;
  }

  int64_t region_of(const at::Tensor* tensor) const {
    if (tensor) {
      auto begin = reinterpret_cast<uintptr_t>(tensor->data_ptr());
      for (const Region& region : regions_) {
        if (region.begin <= begin && begin + tensor->nbytes() <= region.end) {
          return region.number;
        }
      }
    }
    return -1;
  }

  void enqueue(Entry& entry, const Call& call, c10::Stream stream) {
    c10::OptionalStreamGuard on;
    void* handle = nullptr;
    if (!device_.is_cpu()) {
      on.reset_stream(stream);
      handle = stream.native_handle();
    }
    // Calls share the arena: one on another stream waits for those before.
    if (reinterpret_cast<int64_t>(handle) != *last_stream_) {
      py::gil_scoped_acquire gil;
      order_(reinterpret_cast<int64_t>(handle));
    }
    auto address = [](const at::Tensor* tensor) {
      return tensor ? reinterpret_cast<uint64_t>(tensor->data_ptr()) : uint64_t(0);
    };
    {
      std::lock_guard<std::mutex> lock(launching_);
      for (const Launch& one : entry.launches) {
        one.fields[0] = address(call.input) + one.begin;
        one.fields[1] = address(call.output) + one.begin;
        void* arguments[] = {one.fields};
        int status = enqueue_(one.function, one.blocks, 1, 1, one.threads, 1, 1, 0, handle, arguments, nullptr);
        TORCH_CHECK(!status, "a planned ", call.collective, " of ", call.size_bytes, " bytes was not launched: CUDA error ",
                    status);
      }
    }
    if (call.op && call.output && static_cast<c10d::ReduceOp::RedOpType>(*call.op) == c10d::ReduceOp::AVG) {
      at::Tensor output = *call.output;
      output.div_(size_);
    }
  }

  c10::Stream current() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

  // The stream of calls that their callers go on without; it waits for what the caller has queued.
  c10::Stream side(c10::Stream now) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!side_) {
      side_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_, false);
    }
    c10::Event ready(device_.type());
    ready.record(now);
    ready.block(*side_);
    return *side_;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  c10::Device device_;
  Enqueue enqueue_;
  int64_t* last_stream_;
  volatile int64_t* failure_;
  py::object choose_, order_, failed_;
  std::atomic<bool> on_{true}, coalescing_{false};
  std::mutex mutex_, launching_;
  std::unordered_map<Key, Entry, KeyHash> entries_;
  std::vector<Region> regions_;
  std::map<std::pair<std::string, std::string>, int64_t> fell_back_;
  std::optional<c10::Stream> side_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<PlannedBackend, c10d::Backend, c10::intrusive_ptr<PlannedBackend>>(module, "PlannedBackend")
      .def(py::init<
           int, int, c10::intrusive_ptr<c10d::Backend>, c10::Device, uintptr_t, uintptr_t, uintptr_t, py::object,
           py::object, py::object>())
      .def("share", &PlannedBackend::share, Released())
      .def("forget", &PlannedBackend::forget, Released())
      .def("counts", &PlannedBackend::counts, Released());
}
