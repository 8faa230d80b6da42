#include "speculator.h"

#include "clock.h"
#include "logging.h"
#include "measure_costs.h"

#include <algorithm>
#include <numeric>

namespace dflash2 {

Speculator::Speculator(Target & target, Drafter & drafter, Options options) :
    drafter_(drafter), options_(options), policy_(options.depth, options.equal_rows) {
    if (options_.adaptive) {
        measure_costs(target, drafter_, options_.depth, policy_);
    }
}

// How many slots of each sequence to draft
void Speculator::plan_depths(const std::vector<Request> & requests) {
    std::vector<DepthRequest> depth_requests;
    for (const Request & request : requests) {
        const int32_t room = std::min(request.room, drafter_.room(request.block.pos));
        depth_requests.push_back({ *request.acceptance, room, drafter_.backlog(request.block.seq) });
    }
    if (options_.adaptive) {
        plan_ = policy_.plan(depth_requests);
        log_line(LogLevel::debug, describe(plan_));
        return;
    }
    plan_ = {};
    for (const DepthRequest & request : depth_requests) {
        plan_.depths.push_back(std::min(options_.depth, request.room));
    }
    plan_.width = options_.depth;
}

std::vector<Draft> Speculator::draft(const std::vector<Request> & requests, DepthCycle & cycle) {
    plan_depths(requests);

    std::vector<Draft>          drafts(requests.size());
    std::vector<Drafter::Block> blocks;
    std::vector<llama_seq_id>   seqs;
    std::vector<size_t>         owners;
    for (size_t i = 0; i < requests.size(); ++i) {
        const Drafter::Block & block = requests[i].block;
        // a block as wide as the widest must fit
        if (plan_.depths[i] > 0 && drafter_.room(block.pos) >= plan_.width) {
            blocks.push_back(block);
            seqs.push_back(block.seq);
            owners.push_back(i);
        }
    }
    if (blocks.empty()) {
        return drafts;
    }
    inject(seqs, cycle);

    const int64_t              start    = ggml_time_us();
    const std::vector<Lattice> lattices = drafter_.draft(blocks, plan_.width);
    cycle.draft                         = { (int32_t) blocks.size() * (plan_.width + 1), seconds_since(start) };
    for (size_t i = 0; i < blocks.size(); ++i) {
        drafts[owners[i]] = propose(requests[owners[i]], lattices[i], owners[i]);
    }
    return drafts;
}

// Walks the lattice of request i of the plan
Draft Speculator::propose(const Request & request, const Lattice & lattice, size_t i) const {
    WalkOptions walk_options;
    walk_options.depth       = plan_.depths[i];
    walk_options.temperature = request.rule == Rule::match ? 0.0f : request.sampler->temperature();
    walk_options.mask        = request.sampler->mask();
    walk_options.ends        = request.ends;
    walk_options.proposal    = request.proposals->best();
    walk_options.text        = request.text;
    walk_options.extend      = [&](const std::vector<float> & confidence) {
        return confidence.back() >= options_.p_min && (!options_.adaptive || policy_.extend(plan_, i, confidence));
    };
    return walk(lattice, walk_options, request.randoms->walk);
}

void Speculator::inject(const std::vector<llama_seq_id> & seqs, DepthCycle & cycle) {
    for (const llama_seq_id seq : seqs) {
        cycle.inject.rows += drafter_.backlog(seq);
    }
    const int64_t start = ggml_time_us();
    drafter_.inject(seqs);
    llama_synchronize(drafter_.context());
    cycle.inject.seconds += seconds_since(start);
}

void Speculator::inject_overfull(DepthCycle & cycle) {
    if (drafter_.overfull()) {
        std::vector<llama_seq_id> all(llama_n_seq_max(drafter_.context()));
        std::iota(all.begin(), all.end(), 0);
        inject(all, cycle);
    }
}

void Speculator::record(const DepthCycle & cycle) {
    policy_.record(cycle, options_.adaptive && cycle.verify.rows > 0 ? &plan_ : nullptr);
}

// Wrong features, a damaged drafter or scores that are no numbers show only here: the text stays right
std::string complaint_of_drafter(const Stats & total, int64_t one_in) {
    constexpr int64_t enough = 64;  // cycles with a draft to judge by
    const int64_t     n_idle = total.depth_histogram.empty() ? 0 : total.depth_histogram[0];
    const int64_t     n_seen = total.verify_steps - n_idle;
    if (n_seen < enough || total.accepted_tokens >= total.draft_tokens / one_in) {
        return "";
    }
    return "only " + std::to_string(total.accepted_tokens) + " of " + std::to_string(total.draft_tokens) +
           " drafted tokens were accepted in " + std::to_string(n_seen) +
           " target passes: the drafter does not fit this target or these prompts";
}

}  // namespace dflash2
