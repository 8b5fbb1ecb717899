// Deficit round robin (Shreedhar, Varghese 1995): queues of several flows, served in turns by bytes.
//
// A flow with frames is in the ring. At its turn it gets `quantum` and gives frames while their cost is covered; what is left is
// its deficit at the next turn. A flow that has given its last frame loses its deficit, and joins at the end of the ring when it
// has frames again. So of two flows that always had frames, none was given more than the other by more than a quantum and
// the costliest frame of each, and a new flow waits for one turn of each other one at most.
//
// One frame costs O(1 + cost / quantum), amortized. A flow without frames takes no memory but its own fields. No clocks, no
// locks, nothing of Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

namespace walle {

template <typename Frame>
class DeficitRoundRobin {
  struct Node {
    Frame frame;
    std::int64_t cost;
    Node* next;
  };

 public:
  // The frames of one sender. It must not move, nor end, while it has frames.
  class Flow {
   public:
    std::size_t size() const { return size_; }

   private:
    friend DeficitRoundRobin;
    Node* first_ = nullptr;
    Node* last_ = nullptr;
    std::size_t size_ = 0;
    std::int64_t deficit_ = 0;
    bool has_quantum_ = false;  // true once the present turn has its quantum
    Flow* next_ = nullptr;      // next flow in the ring
  };

  explicit DeficitRoundRobin(std::int64_t quantum) : quantum_(quantum) {}
  DeficitRoundRobin(const DeficitRoundRobin&) = delete;
  DeficitRoundRobin& operator=(const DeficitRoundRobin&) = delete;
  ~DeficitRoundRobin() {
    clear([](Frame&) {});
  }

  std::size_t size() const { return size_; }
  std::size_t flows() const { return flows_; }  // flows with frames

  // Appends a frame of a flow. Throws std::bad_alloc, and nothing is changed then.
  void push(Flow& flow, const Frame& frame, std::int64_t cost) {
    Node* node = new Node{frame, cost, nullptr};
    (flow.first_ == nullptr ? flow.first_ : flow.last_->next) = node;
    flow.last_ = node;
    ++size_;
    if (flow.size_++ == 0) append(flow);
  }

  // Makes a frame that `pop` gave the first one of its flow again, and returns its cost to the flow. Throws std::bad_alloc.
  void put_back(Flow& flow, const Frame& frame, std::int64_t cost) {
    flow.first_ = new Node{frame, cost, flow.first_};
    if (flow.last_ == nullptr) flow.last_ = flow.first_;
    flow.deficit_ += cost;
    ++size_;
    if (flow.size_++ > 0) return;
    flow.has_quantum_ = true;
    flow.next_ = first_;
    first_ = &flow;
    if (last_ == nullptr) last_ = &flow;
    ++flows_;
  }

  // Returns the cost of the frame that comes next, and moves the frame to `frame`. There must be one.
  std::int64_t pop(Frame& frame) {
    while (true) {
      Flow& flow = *first_;
      if (!flow.has_quantum_) flow.deficit_ += quantum_;
      flow.has_quantum_ = flow.first_->cost <= flow.deficit_;
      if (!flow.has_quantum_) {
        remove_first();
        append(flow);
        continue;
      }
      Node* node = flow.first_;
      const std::int64_t cost = node->cost;
      frame = std::move(node->frame);
      flow.first_ = node->next;
      delete node;
      flow.deficit_ -= cost;
      --size_;
      if (--flow.size_ == 0) {
        flow.last_ = nullptr;
        flow.deficit_ = 0;
        flow.has_quantum_ = false;
        remove_first();
      }
      return cost;
    }
  }

  // Calls `function` with the first frame of each flow that has frames.
  template <typename Function>
  void each_first(Function function) const {
    for (const Flow* flow = first_; flow != nullptr; flow = flow->next_) function(flow->first_->frame);
  }

  // Calls `function` with each frame until it returns other than 0, and returns that.
  template <typename Function>
  int each(Function function) const {
    for (const Flow* flow = first_; flow != nullptr; flow = flow->next_)
      for (const Node* node = flow->first_; node != nullptr; node = node->next)
        if (const int result = function(node->frame); result != 0) return result;
    return 0;
  }

  // Removes all frames, and then calls `function` with each.
  template <typename Function>
  void clear(Function function) {
    Node* removed = nullptr;
    while (first_ != nullptr) {
      Flow& flow = *first_;
      remove_first();
      flow.last_->next = removed;
      removed = flow.first_;
      flow.first_ = flow.last_ = nullptr;
      flow.size_ = 0;
      flow.deficit_ = 0;
      flow.has_quantum_ = false;
    }
    size_ = 0;
    while (removed != nullptr) {
      Node* node = removed;
      removed = node->next;
      function(node->frame);
      delete node;
    }
  }

 private:
  void append(Flow& flow) {
    (first_ == nullptr ? first_ : last_->next_) = &flow;
    last_ = &flow;
    ++flows_;
  }

  void remove_first() {
    Flow& flow = *first_;
    first_ = flow.next_;
    if (first_ == nullptr) last_ = nullptr;
    flow.next_ = nullptr;
    --flows_;
  }

  const std::int64_t quantum_;
  std::size_t size_ = 0;
  std::size_t flows_ = 0;
  Flow* first_ = nullptr;  // first flow of the ring
  Flow* last_ = nullptr;
};

}  // namespace walle
