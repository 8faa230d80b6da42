#pragma once

// Runs GPU kernel bodies on the CPU: a grid of blocks (CUDA) or threadgroups (Metal), one block after another, the
// threads of a block as fibers that go on until they wait for one another. README.md says what it catches and what it
// cannot.

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__linux__)
#include <link.h>
#endif
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace shim {

struct Dim {
    unsigned x;
    unsigned y;
    unsigned z;

    Dim(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}

    unsigned count() const { return x * y * z; }

    // The indices of the i-th element, x running fastest
    Dim at(unsigned i) const { return { i % x, i / x % y, i / (x * y) }; }
};

struct Launch {
    Dim      grid;
    Dim      block;
    size_t   shared_bytes = 0;      // dynamic shared memory, threadgroup memory
    unsigned simd_width   = 32;     // lanes of a warp, wavefront or SIMD group: at most 64
    bool     backward     = false;  // blocks, and threads between two waits, run in falling order
};

// What a kernel did that it must not; names block and thread.
struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Where the calling thread is.
struct Position {
    Dim      thread;     // in its block
    Dim      block;      // in the grid
    unsigned index = 0;  // of the thread in its block
    unsigned lane  = 0;
    unsigned simd  = 0;  // which warp, wavefront or SIMD group of the block
};

// Where in the source a thread waits.
struct Site {
    const char * file = nullptr;
    int          line = 0;
    bool         simd = false;  // waits for its SIMD group only

    bool        operator==(const Site & other) const { return line == other.line && file == other.file; }
    std::string text() const {
        const char * slash = std::strrchr(file, '/');
        return std::string(slash ? slash + 1 : file) + ":" + std::to_string(line) + (simd ? " (SIMD group)" : "");
    }
};

constexpr unsigned      max_lanes  = 64;
constexpr size_t        stack_size = 128 * 1024;
constexpr unsigned char poison     = 0xFF;  // NaN as a float, -1 as an integer

// Memory that ends at a page that cannot be touched, and whose start is aligned to 16 bytes.
class GuardedPages {
public:
    explicit GuardedPages(size_t size) {
        const size_t page  = (size_t) sysconf(_SC_PAGESIZE);
        const size_t bytes = (size + page - 1) / page * page;
        mapped_            = bytes + 2 * page;
        start_             = (unsigned char *) mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start_ == MAP_FAILED || mprotect(start_ + page, bytes, PROT_READ | PROT_WRITE) != 0) {
            throw std::bad_alloc();
        }
        first_ = start_ + page;
        last_  = first_ + bytes;
    }
    ~GuardedPages() { munmap(start_, mapped_); }
    GuardedPages(const GuardedPages &)             = delete;
    GuardedPages & operator=(const GuardedPages &) = delete;

    unsigned char * first() const { return first_; }
    unsigned char * last() const { return last_; }

private:
    unsigned char * start_;
    unsigned char * first_;
    unsigned char * last_;
    size_t          mapped_;
};

class Executor;
inline Executor * running = nullptr;

enum class State { ready, waiting, ended };

// A thread of a block. It serves one block after another and outlives the launch, since a new one costs more than most
// blocks.
struct Fiber {
    Fiber() : stack(new char[stack_size]) {}

    std::unique_ptr<char[]> stack;
    bool                    started = false;
    ucontext_t              context;
    jmp_buf                 resume;
    Position                position;
    State                   state = State::ended;
    Site                    site;
};

class Executor {
public:
    Executor(const Launch & launch, const std::function<void()> & body) :
        launch_(launch), body_(body), shared_(launch.shared_bytes) {
        const unsigned n_threads = launch.block.count();
        if (n_threads == 0 || n_threads > 1024 || launch.simd_width == 0 || launch.simd_width > max_lanes) {
            throw Fault("a block of " + std::to_string(n_threads) + " threads in groups of " +
                        std::to_string(launch.simd_width) + " cannot be launched");
        }
        for (unsigned i = 0; i < n_threads; ++i) {
            fibers_.push_back(fiber(i));
        }
        groups_.resize((n_threads + launch.simd_width - 1) / launch.simd_width);
    }

    void run() {
        const SignalCatcher catcher;
        running = this;
        // A signal's way out of a fiber
        if (sigsetjmp(signal_exit_, 1) == 0) {
            const unsigned n_blocks = launch_.grid.count();
            for (unsigned i = 0; i < n_blocks && fault_.empty(); ++i) {
                run_block(launch_.backward ? n_blocks - 1 - i : i);
            }
        }
        running = nullptr;
        if (!fault_.empty()) {
            for (Fiber * fiber : fibers_) {
                fiber->started = fiber->started && fiber->state == State::ended;  // the rest stopped within a kernel
            }
            throw Fault(fault_);
        }
    }

    const Position & position() const { return fibers_[current_]->position; }
    const Launch &   launch() const { return launch_; }
    void *           shared() { return shared_.last() - shared_size(); }

    // Stops the calling thread until its block or its SIMD group has come to the same site.
    void wait(const Site & site) {
        Fiber & fiber = *fibers_[current_];
        fiber.site    = site;
        fiber.state   = State::waiting;
        leave(fiber);
    }

    // Never returns to the kernel.
    void fault(const std::string & what) {
        fail(what);
        leave(*fibers_[current_]);
    }

    // What the lanes of a SIMD group show one another, in two turns: a slow lane still reads what a fast one writes over.
    struct Group {
        alignas(16) unsigned char slots[2][max_lanes][16];
        uint64_t active[2];  // lanes that took part
        unsigned turn;
    };

    Group & group() { return groups_[position().simd]; }

private:
    // Turns a bad access of a kernel into a fault while a launch runs.
    class SignalCatcher {
    public:
        SignalCatcher() : stack_(64 * 1024) {
            stack_t alternative{};
            alternative.ss_sp   = stack_.data();
            alternative.ss_size = stack_.size();
            sigaltstack(&alternative, &old_stack_);
            struct sigaction action{};
            action.sa_sigaction = caught;
            action.sa_flags     = SA_SIGINFO | SA_ONSTACK;
            for (size_t i = 0; i < n_signals; ++i) {
                sigaction(signals[i], &action, &old_[i]);
            }
        }
        ~SignalCatcher() {
            for (size_t i = 0; i < n_signals; ++i) {
                sigaction(signals[i], &old_[i], nullptr);
            }
            sigaltstack(&old_stack_, nullptr);
        }
        SignalCatcher(const SignalCatcher &)             = delete;
        SignalCatcher & operator=(const SignalCatcher &) = delete;

    private:
        static constexpr size_t n_signals          = 5;
        static constexpr int    signals[n_signals] = { SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE };

        static void caught(int signal, siginfo_t * info, void *) {
            if (signal == SIGSEGV || signal == SIGBUS) {
                char address[32];
                std::snprintf(address, sizeof(address), "%p", info->si_addr);
                running->fail(std::string("access outside of every buffer, at ") + address);
            } else {
                running->fail("undefined behaviour: a misaligned access, an index outside of an array, an overflow");
            }
            siglongjmp(running->signal_exit_, 1);
        }

        std::vector<char> stack_;
        stack_t           old_stack_{};
        struct sigaction  old_[n_signals]{};
    };

    size_t shared_size() const { return (launch_.shared_bytes + 15) / 16 * 16; }

    void fail(const std::string & what) {
        const Position & at  = position();
        const auto       xyz = [](const Dim & dim) {
            return "(" + std::to_string(dim.x) + "," + std::to_string(dim.y) + "," + std::to_string(dim.z) + ")";
        };
        fault_ = "block " + xyz(at.block) + " thread " + xyz(at.thread) + ": " + what;
    }

    static Fiber * fiber(size_t index) {
        static std::vector<std::unique_ptr<Fiber>> fibers;
        while (fibers.size() <= index) {
            fibers.push_back(std::make_unique<Fiber>());
        }
        return fibers[index].get();
    }

    static void fiber_main() {
        for (;;) {
            running->body_();
            Fiber & fiber = *running->fibers_[running->current_];
            fiber.state   = State::ended;
            running->leave(fiber);
        }
    }

    // A context is entered once; from then on the jumps, which save no signal mask, are a hundred times cheaper.
    void enter(unsigned index) {
        current_      = index;
        Fiber & fiber = *fibers_[index];
        if (_setjmp(scheduler_) != 0) {
            return;
        }
        if (!fiber.started) {
            fiber.started = true;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp   = fiber.stack.get();
            fiber.context.uc_stack.ss_size = stack_size;
            fiber.context.uc_link          = nullptr;
            makecontext(&fiber.context, fiber_main, 0);
            setcontext(&fiber.context);
        }
        _longjmp(fiber.resume, 1);
    }

    void leave(Fiber & fiber) {
        if (_setjmp(fiber.resume) == 0) {
            _longjmp(scheduler_, 1);
        }
    }

    void run_block(unsigned block_index) {
        poison_shared();
        for (unsigned i = 0; i < fibers_.size(); ++i) {
            Position & position = fibers_[i]->position;
            position            = { launch_.block.at(i), launch_.grid.at(block_index), i, i % launch_.simd_width,
                                    i / launch_.simd_width };
            fibers_[i]->state   = State::ready;
        }
        for (Group & group : groups_) {
            std::memset(&group, poison, sizeof(group.slots));
            group.active[0] = group.active[1] = 0;
            group.turn                        = 0;
        }
        do {
            const unsigned n_threads = (unsigned) fibers_.size();
            for (unsigned i = 0; i < n_threads && fault_.empty(); ++i) {
                const unsigned index = launch_.backward ? n_threads - 1 - i : i;
                if (fibers_[index]->state == State::ready) {
                    enter(index);
                }
            }
        } while (fault_.empty() && release());
    }

    // Lets go on who waits for nobody any more; false: all threads of the block have ended, or there is a fault.
    bool release() {
        bool released = false;
        for (unsigned i = 0; i < groups_.size(); ++i) {
            const unsigned first = i * launch_.simd_width;
            const unsigned last  = std::min<unsigned>(first + launch_.simd_width, (unsigned) fibers_.size());
            // Lanes that have ended are not waited for, as on the devices.
            if (release_together(first, last, true)) {
                Group & group = groups_[i];
                group.turn ^= 1;
                group.active[group.turn] = 0;
                std::memset(group.slots[group.turn], poison, sizeof(group.slots[0]));
                released = true;
            }
        }
        // Metal waits for every thread of a block, so a thread that ended early is a fault.
        released = release_together(0, (unsigned) fibers_.size(), false) || released;
        if (!released && n_in_state(State::ended) < fibers_.size()) {
            report_deadlock();
        }
        return released && fault_.empty();
    }

    bool release_together(unsigned first, unsigned last, bool simd) {
        const Site * site = nullptr;
        for (unsigned i = first; i < last; ++i) {
            const Fiber & fiber = *fibers_[i];
            if (fiber.state == State::ended && simd) {
                continue;
            }
            if (fiber.state != State::waiting || fiber.site.simd != simd || (site && !(fiber.site == *site))) {
                return false;
            }
            site = &fiber.site;
        }
        for (unsigned i = first; i < last; ++i) {
            if (fibers_[i]->state == State::waiting) {
                fibers_[i]->state = State::ready;
            }
        }
        return site != nullptr;
    }

    size_t n_in_state(State state) const {
        size_t n = 0;
        for (const Fiber * fiber : fibers_) {
            n += fiber->state == state ? 1 : 0;
        }
        return n;
    }

    void report_deadlock() {
        std::map<std::string, int> places;
        for (unsigned i = 0; i < fibers_.size(); ++i) {
            if (fibers_[i]->state == State::waiting) {
                current_ = i;
            }
            ++places[fibers_[i]->state == State::ended ? "ended" : "waiting at " + fibers_[i]->site.text()];
        }
        std::string what = "divergent barrier or shuffle:";
        for (const auto & [place, n] : places) {
            what += " " + std::to_string(n) + " threads " + place + ";";
        }
        fail(what);
    }

    // What a block leaves in shared memory must not serve the next one.
    void poison_shared() {
        std::memset(shared_.first(), poison, (size_t) (shared_.last() - shared_.first()));
#if defined(__linux__)
        // Static shared variables are thread-local ones of the library that holds the kernels: see SHIM_SHARED. They lie
        // nowhere before one of them is touched
        static thread_local char touched;
        *const_cast<volatile char *>(&touched) = 1;
        dl_iterate_phdr(
            [](dl_phdr_info * info, size_t, void *) {
                const uintptr_t here = (uintptr_t) &Executor::fiber_main;
                for (int i = 0; i < info->dlpi_phnum; ++i) {
                    const auto & segment = info->dlpi_phdr[i];
                    const auto   start   = info->dlpi_addr + segment.p_vaddr;
                    if (segment.p_type == PT_LOAD && here >= start && here < start + segment.p_memsz) {
                        poison_thread_locals(info);
                        return 1;
                    }
                }
                return 0;
            },
            nullptr);
#endif
    }

#if defined(__linux__)
    static void poison_thread_locals(const dl_phdr_info * info) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            if (info->dlpi_phdr[i].p_type == PT_TLS && info->dlpi_tls_data) {
                std::memset(info->dlpi_tls_data, poison, info->dlpi_phdr[i].p_memsz);
            }
        }
    }
#endif

    const Launch                  launch_;
    const std::function<void()> & body_;
    GuardedPages                  shared_;
    std::vector<Fiber *>          fibers_;
    std::vector<Group>            groups_;
    std::string                   fault_;
    unsigned                      current_ = 0;
    jmp_buf                       scheduler_;
    sigjmp_buf                    signal_exit_;
};

// Calls body once for every thread of the launch. Throws Fault.
inline void run(const Launch & launch, const std::function<void()> & body) {
    Executor(launch, body).run();
}

// From here on: what a face (cuda.h, metal.h) builds its names on. To be called by kernels only.

inline const Position & position() {
    return running->position();
}

inline const Launch & launch() {
    return running->launch();
}

// The dynamic shared memory of the block: aligned to 16 bytes, poisoned, a guard page behind it.
inline void * shared() {
    return running->shared();
}

// Before a static variable of a kernel: one for the whole block, poisoned before each block. Trivial types only.
#define SHIM_SHARED static thread_local

inline void barrier(const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    running->wait({ file, line, false });
}

inline void simd_barrier(const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    running->wait({ file, line, true });
}

// The values that all lanes of a SIMD group brought to one call of gather(). Read it before the next one.
template <typename T>
class Gathered {
public:
    Gathered(const unsigned char (*slots)[16], uint64_t active) : slots_(slots), active_(active) {}

    bool active(unsigned lane) const { return lane < max_lanes && (active_ >> lane & 1) != 0; }

    // Poison for a lane that took no part
    T operator[](unsigned lane) const {
        T value;
        if (active(lane)) {
            std::memcpy(&value, slots_[lane], sizeof(T));
        } else {
            std::memset(&value, poison, sizeof(T));
        }
        return value;
    }

private:
    const unsigned char (*slots_)[16];
    uint64_t active_;
};

// What every shuffle, vote and reduction of a SIMD group is made of.
template <typename T>
Gathered<T> gather(T value, const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    static_assert(sizeof(T) <= 16, "a lane shows at most 16 bytes");
    Executor::Group & group = running->group();
    const unsigned    lane  = position().lane;
    const unsigned    turn  = group.turn;
    std::memcpy(group.slots[turn][lane], &value, sizeof(T));
    group.active[turn] |= (uint64_t) 1 << lane;
    running->wait({ file, line, true });
    return { group.slots[turn], group.active[turn] };
}

template <typename T>
T shuffle(T value, unsigned source_lane, const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    return gather(value, file, line)[source_lane];
}

// op over the lanes of the group, lane 0 first; every lane gets the result.
template <typename T, typename Op>
T reduce(T value, Op op, const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    const Gathered<T> all = gather(value, file, line);
    bool              any = false;
    T                 sum{};
    for (unsigned lane = 0; lane < max_lanes; ++lane) {
        if (all.active(lane)) {
            sum = any ? op(sum, all[lane]) : all[lane];
            any = true;
        }
    }
    return sum;
}

// Bit i: lane i says yes
inline uint64_t ballot(bool vote, const char * file = __builtin_FILE(), int line = __builtin_LINE()) {
    const Gathered<unsigned char> all  = gather((unsigned char) vote, file, line);
    uint64_t                      bits = 0;
    for (unsigned lane = 0; lane < max_lanes; ++lane) {
        bits |= (uint64_t) (all.active(lane) && all[lane] != 0) << lane;
    }
    return bits;
}

}  // namespace shim
