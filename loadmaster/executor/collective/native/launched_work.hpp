// Work that a planned call returns: it is launched, on a stream of its own or the caller's.

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace loadmaster {

using c10d::Work;
using Tensors = std::vector<at::Tensor>;

// The stream that a call runs on, and an event behind it where that is not the caller's.
class LaunchedWork : public Work {
 public:
  LaunchedWork(int rank, c10d::OpType type, Tensors filled, c10::Stream stream, bool later)
      : Work(rank, type), filled_(std::move(filled)), stream_(stream) {
    if (later) {
      over_.emplace(stream.device_type());
      over_->record(stream);
    }
  }

  // What follows on the current stream comes after it; the kernel itself minds the time.
  bool wait(std::chrono::milliseconds = kNoTimeout) override {
    if (over_) {
      over_->block(c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device()));
    }
    return true;
  }
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }
  bool isCompleted() override { return !over_ || over_->query(); }
  bool isSuccess() const override { return true; }
  Tensors result() override { return filled_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::vector<c10::Device> devices;
    if (!stream_.device().is_cpu()) {
      devices.push_back(stream_.device());
    }
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::move(devices));
    c10::OptionalStreamGuard on;
    if (!stream_.device().is_cpu()) {
      on.reset_stream(stream_);
    }
    future->markCompleted(c10::IValue(filled_));
    return future;
  }

 private:
  Tensors filled_;
  c10::Stream stream_;
  std::optional<c10::Event> over_;
};

}  // namespace loadmaster
