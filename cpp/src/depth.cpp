#include "depth.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>

namespace dflash2 {

namespace {

constexpr double  first_credit  = 1.75;  // cycles without drafting
constexpr double  most_credit   = 6;     // that are saved up, where one trial does not cost more
constexpr double  credit_rate   = 0.01;  // of the time
constexpr double  most_debt     = 0.5;   // a drafter that fails late is asked again all the same
constexpr double  explore_rate  = 0.005;
constexpr int32_t patience      = 3;    // lost trials before less is spent on the next ones
constexpr double  share_decay   = 0.8;  // for each one more
constexpr double  least_share   = 0.4;
constexpr int32_t most_interval = 32;    // cycles between two trials
constexpr double  worth         = 1.03;  // times the tokens per second of what is known: less may be noise of the model
constexpr double  compare_cycles = 1000;  // times the square of the gain, between two looks at no draft: 10 at 10 %
constexpr double  stall          = 1.4;   // times the model: a slower cycle is no fault of its depth
constexpr int32_t catch_up       = 16;    // cycles that share the cost of a long backlog
constexpr int32_t smooth_rows    = 16;    // up to here neighbouring widths are measured one by one

}  // namespace

struct DepthPolicy::Choice {
    std::vector<int32_t> depths;
    double               tokens      = 0;
    double               seconds     = 0;
    double               least_reach = 1;  // of the slots taken
    double               spread_rate = 0;  // with a long backlog spread over the cycles to come, 0 without a draft

    double rate() const { return seconds > 0 ? tokens / seconds : 0; }
};

// The requests of one cycle against the models.
class DepthPolicy::Evaluation {
public:
    Evaluation(const DepthPolicy & policy, const std::vector<DepthRequest> & requests) :
        policy_(policy), requests_(requests), max_depth_(policy.max_depth_), reach_(requests.size() * max_depth_) {
        for (size_t i = 0; i < requests.size(); ++i) {
            double reach = 1;
            for (int32_t slot = 0; slot < room(i); ++slot) {
                reach *= policy.acceptance_.chance(requests[i].acceptance, slot);
                reach_[i * max_depth_ + slot] = reach;
            }
        }
    }

    size_t  size() const { return requests_.size(); }
    int32_t room(size_t i) const { return std::clamp(requests_[i].room, 0, max_depth_); }
    int32_t backlog(size_t i) const { return std::max(0, requests_[i].backlog); }
    double  reach(size_t i, int32_t slot) const { return reach_[i * max_depth_ + slot]; }

    double plain_seconds() const { return policy_.plain_seconds((int32_t) size()); }

    // What asking the drafter for the least costs, in cycles without a draft. None: no sequence has room
    std::optional<double> probe_price() const;

    Choice best() const;
    Choice best_of(bool long_backlogs) const;

    // Of the target's pass
    int32_t rows(const std::vector<int32_t> & depths) const {
        const auto n = (int32_t) size();
        return policy_.equal_rows_ ? n * (1 + *std::max_element(depths.begin(), depths.end())) :
                                     std::accumulate(depths.begin(), depths.end(), n);
    }

    // Tokens and seconds of given depths, the whole backlog counted. hoped: at the costs that unknown widths may have
    Choice of(const std::vector<int32_t> & depths, bool hoped = false) const;

private:
    const DepthPolicy &               policy_;
    const std::vector<DepthRequest> & requests_;
    int32_t                           max_depth_;
    std::vector<double>               reach_;  // [request][slot] chance that this and all slots before are accepted
};

DepthPolicy::Choice DepthPolicy::Evaluation::of(const std::vector<int32_t> & depths, bool hoped) const {
    const CostModel & costs    = policy_.costs_;
    const int32_t     n_rows   = rows(depths);
    int32_t           n_draft  = 0;
    int32_t           n_inject = 0;
    int32_t           width    = 0;
    Choice            result;
    result.depths = depths;
    result.tokens = (double) size();
    for (size_t i = 0; i < size(); ++i) {
        width = std::max(width, depths[i]);
        n_draft += depths[i] > 0 ? 1 : 0;
        n_inject += depths[i] > 0 ? backlog(i) : 0;
        for (int32_t slot = 0; slot < depths[i]; ++slot) {
            result.tokens += reach(i, slot);
            result.least_reach = std::min(result.least_reach, reach(i, slot));
        }
    }
    result.seconds =
        hoped ? costs.verify.hoped_seconds(n_rows) + costs.host.seconds(n_rows) : costs.verify_seconds(n_rows);
    if (n_draft > 0) {
        const int32_t block_rows = n_draft * (width + 1);
        result.seconds +=
            hoped && !costs.draft.empty() ? costs.draft.hoped_seconds(block_rows) : costs.draft_seconds(block_rows);
        result.seconds += n_inject > 0 ? costs.inject.seconds(n_inject) : 0;
    }
    return result;
}

std::optional<double> DepthPolicy::Evaluation::probe_price() const {
    std::optional<size_t> cheapest;
    for (size_t i = 0; i < size(); ++i) {
        if (room(i) > 0 && (!cheapest || backlog(i) < backlog(*cheapest))) {
            cheapest = i;
        }
    }
    if (!cheapest) {
        return std::nullopt;
    }
    std::vector<int32_t> depths(size(), 0);
    depths[*cheapest] = 1;
    return of(depths).seconds / plain_seconds() - 1;
}

// Slots enter in the order of their chance to be reached and accepted, the rate is that of each prefix of this list. A
// width is paid by all that draft, so each width has its own list.
DepthPolicy::Choice DepthPolicy::Evaluation::best_of(bool long_backlogs) const {
    struct Slot {
        double  reach;
        int32_t request;
        int32_t slot;
    };

    std::vector<Slot> slots;
    slots.reserve(reach_.size());
    for (size_t i = 0; i < size(); ++i) {
        const bool takes_part = long_backlogs || backlog(i) <= max_depth_ + 1;
        for (int32_t slot = 0; takes_part && slot < room(i); ++slot) {
            slots.push_back({ reach(i, slot), (int32_t) i, slot });
        }
    }
    std::sort(slots.begin(), slots.end(), [](const Slot & a, const Slot & b) {
        return a.reach != b.reach ? a.reach > b.reach : a.slot != b.slot ? a.slot < b.slot : a.request < b.request;
    });

    const CostModel &   costs = policy_.costs_;
    const auto          n     = (int32_t) size();
    std::vector<double> verify_seconds(reach_.size() + 1);
    for (size_t k = 0; k < verify_seconds.size(); ++k) {
        verify_seconds[k] = costs.verify_seconds(n + (int32_t) k);
    }

    // of many widths the best looks better than it is: none is taken at its best
    double  best_rate  = worth * n / plain_seconds();
    int32_t best_width = 0;
    size_t  best_slots = 0;
    for (int32_t width = 1; width <= max_depth_; ++width) {
        double  tokens  = n;
        double  draft   = 0;
        double  waiting = 0;  // rows to inject, a long backlog spread over the cycles that profit from it
        int32_t n_draft = 0;
        int32_t deepest = 0;
        size_t  n_slots = 0;
        for (const Slot & slot : slots) {
            if (slot.slot >= width) {
                continue;
            }
            tokens += slot.reach;
            ++n_slots;
            if (slot.slot == 0) {
                const int32_t usual  = std::min(backlog(slot.request), max_depth_ + 1);
                const int32_t shares = std::clamp(requests_[slot.request].room / 4, 1, catch_up);
                waiting += usual + (double) (backlog(slot.request) - usual) / shares;
                draft = costs.draft_seconds(++n_draft * (width + 1));
                if (waiting > 0) {
                    draft += costs.inject.seconds(std::max(1, (int32_t) std::lround(waiting)));
                }
            }
            deepest             = std::max(deepest, slot.slot + 1);
            const size_t n_rows = policy_.equal_rows_ ? (size_t) (n * deepest) : n_slots;
            const double rate   = tokens / (verify_seconds[n_rows] + draft);
            if (rate > best_rate) {
                best_rate  = rate;
                best_width = width;
                best_slots = n_slots;
            }
        }
    }

    Choice best;
    best.depths.assign(size(), 0);
    size_t n_slots = 0;
    for (const Slot & slot : slots) {
        if (slot.slot < best_width && n_slots < best_slots) {
            ++best.depths[slot.request];
            ++n_slots;
        }
    }
    Choice result      = of(best.depths);
    result.spread_rate = best_slots > 0 ? best_rate : 0;
    return result;
}

DepthPolicy::Choice DepthPolicy::Evaluation::best() const {
    // where drafting has lost of late, by the clock, the model is not believed at all
    if (policy_.budget(size()).probe_credit < 0) {
        return of(std::vector<int32_t>(size(), 0));
    }
    // a sequence whose backlog costs too much must not keep the others from drafting
    Choice     best      = best_of(true);
    const auto is_behind = [&](const DepthRequest & request) {
        return request.backlog > max_depth_ + 1;
    };
    if (std::any_of(requests_.begin(), requests_.end(), is_behind)) {
        Choice without = best_of(false);
        if (without.spread_rate > best.spread_rate) {
            best = std::move(without);
        }
    }
    return best;
}

// A probe of the drafter: the most outcomes seen for the time lost, and no more lost than there is credit for
bool DepthPolicy::probe(const Evaluation &    evaluation,
                        std::optional<double> price,
                        const Choice &        best,
                        Choice &              choice) const {
    const Budget & budget = this->budget(evaluation.size());
    // paid for even if all of it is rejected
    const double most = (1 + budget.probe_credit) * best.seconds;
    if (!budget.probes.due() || !price || (1 + *price) * evaluation.plain_seconds() > most) {
        return false;
    }
    std::vector<size_t> order(evaluation.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return evaluation.backlog(a) < evaluation.backlog(b); });

    double best_score = 0;
    for (int32_t depth = 1; depth <= max_depth_; ++depth) {
        for (size_t n_draft = 1; n_draft <= evaluation.size(); n_draft *= 2) {
            std::vector<int32_t> depths(evaluation.size(), 0);
            double               seen = 0;
            for (size_t i = 0; i < n_draft; ++i) {
                depths[order[i]] = std::min(depth, evaluation.room(order[i]));
                for (int32_t slot = 0; slot < depths[order[i]]; ++slot) {
                    seen += slot > 0 ? evaluation.reach(order[i], slot - 1) : 1;
                }
            }
            const Choice trial = evaluation.of(depths);
            const double waste = trial.seconds - trial.tokens / best.rate();
            const double score = seen / std::max(waste, 1e-3 * best.seconds);
            if (seen > 0 && trial.seconds <= most && score > best_score) {
                best_score = score;
                choice     = trial;
            }
        }
    }
    return best_score > 0;
}

// A width whose cost is not known, or not any more, and that would be the best if it were as cheap as it may be. Of those
// beyond all that was seen the next is tried, for the sake of the best of them: what it costs tells of the others
bool DepthPolicy::explore(const Evaluation & evaluation, const Choice & best, Choice & choice) const {
    const Budget & budget = this->budget(evaluation.size());
    const double   plain  = costs_.verify_seconds((int32_t) evaluation.size());
    const double   credit =
        best.least_reach < 1 ? budget.explore_credit : std::min(budget.probe_credit, budget.explore_credit);
    double                best_score = 0;
    bool                  found      = false;
    std::optional<Choice> next;
    double                next_gain = 0;
    const auto            consider  = [&](const Choice & trial, double seconds, double gain) {
        const double waste = seconds - trial.tokens / best.rate();
        const double score = gain / std::max(waste, 1e-2 * plain);
        if (gain > 0 && waste <= credit * plain && score > best_score) {
            best_score = score;
            choice     = trial;
            found      = true;
        }
    };
    for (int32_t depth = 0; depth <= max_depth_; ++depth) {
        std::vector<int32_t> depths(evaluation.size());
        for (size_t i = 0; i < depths.size(); ++i) {
            depths[i] = std::min(depth, evaluation.room(i));
        }
        if (depths == best.depths) {
            if (depth == 0 && !budget.explorations.due()) {
                break;
            }
            continue;
        }
        const int32_t rows  = evaluation.rows(depths);
        const Choice  hoped = evaluation.of(depths, true);
        const Choice  trial = evaluation.of(depths);
        const double  gain  = hoped.rate() / best.rate() - worth;
        if (!costs_.verify.reaches(rows)) {
            if (!next) {
                next = trial;
            }
            next_gain = std::max(next_gain, gain);
            continue;
        }
        // what was measured long ago is doubted by half: else a wrong guess of it could never be found out
        consider(trial, costs_.verify.seen(rows) ? (trial.seconds + hoped.seconds) / 2 : trial.seconds, gain);
        // what everything is compared with is asked for at once, the rest at intervals
        if (depth == 0 && (found || !budget.explorations.due())) {
            break;
        }
    }
    if (next) {
        consider(*next, next->seconds, next_gain);
    }
    return found;
}

double DepthPolicy::Pace::share() const {
    return std::max(least_share, std::pow(share_decay, std::max(0, n_lost - patience)));
}

void DepthPolicy::Pace::tried(bool in_vain, bool lost) {
    interval = in_vain ? std::min(2 * interval, most_interval) : 1;
    waited   = 0;
    n_lost   = lost ? n_lost + 1 : n_lost / 2;
}

DepthPolicy::DepthPolicy(int32_t max_depth, bool equal_rows) :
    max_depth_(max_depth), equal_rows_(equal_rows), acceptance_(max_depth) {
    for (Budget & budget : budgets_) {
        budget.probe_credit = budget.explore_credit = first_credit;
    }
}

size_t DepthPolicy::budget_of(size_t n_sequences) {
    size_t i = 0;
    while (i + 1 < n_budgets && (size_t{ 1 } << i) < n_sequences) {
        ++i;
    }
    return i;
}

DepthPlan DepthPolicy::plan(const std::vector<DepthRequest> & requests) const {
    DepthPlan plan;
    plan.depths.assign(requests.size(), 0);
    plan.expected_depths = plan.depths;
    for (const DepthRequest & request : requests) {
        plan.acceptance.push_back(request.acceptance);
    }
    plan.expected_tokens = (double) requests.size();
    plan.expected_rows   = (int32_t) requests.size();
    // every comparison is with the cost of no draft: known first
    if (requests.empty() || !costs_.verify.reaches((int32_t) requests.size())) {
        return plan;
    }

    const Evaluation evaluation(*this, requests);
    const Choice     best   = evaluation.best();
    Choice           choice = best;
    plan.probe_price        = evaluation.probe_price();
    const bool drafts       = std::any_of(best.depths.begin(), best.depths.end(), [](int32_t d) { return d > 0; });
    // the smaller the gain, the better both sides of it must be known
    const double gain = best.rate() * evaluation.plain_seconds() / (double) evaluation.size() - 1;
    if (drafts && budget(requests.size()).since_plain >= compare_cycles * gain * gain) {
        choice      = evaluation.of(plan.depths);
        plan.reason = DepthPlan::Reason::cost;
    } else if (explore(evaluation, best, choice)) {
        plan.reason = DepthPlan::Reason::cost;
    } else if (!drafts && probe(evaluation, plan.probe_price, best, choice)) {
        plan.reason = DepthPlan::Reason::probe;
    }

    plan.tokens_per_second = best.rate();
    plan.expected_tokens   = choice.tokens;
    plan.expected_seconds  = choice.seconds;
    plan.expected_depths   = choice.depths;
    plan.least_reach       = choice.least_reach;
    plan.expected_rows     = evaluation.rows(choice.depths);
    plan.width             = *std::max_element(choice.depths.begin(), choice.depths.end());
    plan.depths            = choice.depths;
    if (plan.reason == DepthPlan::Reason::best) {
        for (size_t i = 0; i < requests.size(); ++i) {
            plan.depths[i] = choice.depths[i] > 0 ? std::min(plan.width, evaluation.room(i)) : 0;
        }
    }
    return plan;
}

// A cycle of so many sequences without a draft, at the least that it may cost
double DepthPolicy::plain_seconds(int32_t n) const {
    return costs_.verify.hoped_seconds(n) + costs_.host.seconds(n);
}

// What the rows between two widths of the target pass cost. In a wide pass two neighbouring widths differ by less than
// their measurements are worth, so the slope is that of a wider stretch around them.
double DepthPolicy::row_seconds(int32_t from, int32_t to) const {
    const int32_t wider = from > smooth_rows ? std::max(0, from / 4 - (to - from) / 2) : 0;
    const int32_t a     = from - wider;
    const int32_t b     = to + wider;
    return (costs_.verify_seconds(b) - costs_.verify_seconds(a)) * (to - from) / (b - a);
}

bool DepthPolicy::extend(const DepthPlan & plan, size_t i, const std::vector<float> & confidences) const {
    const auto slot = (int32_t) confidences.size() - 1;
    const bool paid = equal_rows_ && plan.depths.size() > 1;
    if (slot >= plan.depths[i] || paid || plan.reason != DepthPlan::Reason::best) {
        return slot < plan.depths[i];
    }
    const SequenceAcceptance & sequence = plan.acceptance[i];
    double                     reach    = 1;
    for (int32_t j = 0; j <= slot; ++j) {
        reach *= acceptance_.chance(sequence, j, confidences[j]);
    }
    const int32_t rows   = plan.expected_rows - plan.expected_depths[i] + slot;
    double        tokens = reach;
    for (int32_t end = slot + 1;; ++end) {
        // never dearer than the plan found worth it, or it would plan what is then refused
        const double price =
            std::min(plan.tokens_per_second * row_seconds(rows, rows + end - slot), plan.least_reach * (end - slot));
        if (tokens >= price) {
            return true;
        }
        if (end == plan.depths[i]) {
            return false;
        }
        reach *= acceptance_.chance(sequence, end);
        tokens += reach;
    }
}

void DepthPolicy::record(const DepthCycle & cycle, const DepthPlan * plan) {
    const auto n = (int32_t) cycle.outcomes.size();

    costs_.inject.record(cycle.inject.rows, cycle.inject.seconds);
    costs_.draft.record(cycle.draft.rows, cycle.draft.seconds);
    costs_.verify.record(cycle.verify.rows, cycle.verify.seconds);
    costs_.host.record(cycle.verify.rows, cycle.host_seconds);

    int32_t n_accepted = 0;
    for (const DepthCycle::Outcome & outcome : cycle.outcomes) {
        n_accepted += outcome.n_accepted;
        if (!outcome.confidences.empty()) {
            acceptance_.record(*outcome.acceptance, outcome.confidences, outcome.n_proposed, outcome.n_accepted);
        }
    }
    if (cycle.draft.rows == 0) {
        acceptance_.wait();
    }
    if (!plan || n == 0) {
        return;
    }

    // A probe is judged by the model: it must not pay for the noise of one pass. All else by the clock, which knows of no
    // width that was measured too cheap
    const double plain   = plain_seconds(n);
    const double model   = costs_.verify_seconds(cycle.verify.rows) +
                           (cycle.draft.rows > 0 ? costs_.draft.seconds(cycle.draft.rows) : 0) +
                           (cycle.inject.rows > 0 ? costs_.inject.seconds(cycle.inject.rows) : 0);
    const double clock   = cycle.inject.seconds + cycle.draft.seconds + cycle.verify.seconds + cycle.host_seconds;
    const bool   probe   = plan->reason == DepthPlan::Reason::probe;
    const double seconds = probe || clock > stall * model ? model : clock;
    const double cycles  = seconds / plain;
    const double won     = (double) (n + n_accepted) / n;
    Budget &     budget  = budgets_[budget_of(cycle.outcomes.size())];
    budget.since_plain   = cycle.draft.rows > 0 ? budget.since_plain + 1 : 0;
    budget.probe_price   = plan->probe_price.value_or(budget.probe_price);
    budget.probe_credit += credit_rate * budget.probes.share() * cycles + (cycle.draft.rows > 0 ? won - cycles : 0);
    // a drafter that seems dear is asked seldom, but asked: the price may be one that was measured wrongly
    budget.probe_credit = std::clamp(budget.probe_credit, -most_debt, std::max(most_credit, budget.probe_price));
    budget.explore_credit += explore_rate * budget.explorations.share() * cycles;
    if (plan->reason == DepthPlan::Reason::cost) {
        budget.explore_credit += (n + n_accepted) / (plan->tokens_per_second * plain) - cycles;
    }
    budget.explore_credit = std::min(budget.explore_credit, most_credit * std::max(1.0, cycles));
    if (probe) {
        budget.probes.tried(n_accepted == 0, won < cycles);
    } else {
        budget.probes.waited += 1;
    }
    if (plan->reason == DepthPlan::Reason::cost && plan->width > 0) {
        const bool lost = (n + n_accepted) / seconds < plan->tokens_per_second;
        budget.explorations.tried(lost, lost);
    } else {
        budget.explorations.waited += 1;
    }
}

std::string describe(const DepthPlan & plan) {
    std::string line = plan.reason == DepthPlan::Reason::probe ? "probe, " :
                       plan.reason == DepthPlan::Reason::cost  ? "cost, " :
                                                                 "";
    line += "depth";
    for (const int32_t depth : plan.expected_depths) {
        line += " " + std::to_string(depth);
    }
    char text[96];
    std::snprintf(text, sizeof(text), ", width %d: %.1f tokens in %.1f ms", plan.width, plan.expected_tokens,
                  1e3 * plan.expected_seconds);
    return line + text;
}

}  // namespace dflash2
