#include "server_report.h"

#include <sstream>

namespace dflash2 {

namespace {

class Metrics {
public:
    void counter(const char * name, const char * help, double value) {
        head(name, help);
        text_ << "dflash2_" << name << " " << value << "\n";
    }

    // One series for each index
    void counters(const char * name, const char * help, const char * label, const std::vector<int64_t> & values) {
        if (values.empty()) {
            return;
        }
        head(name, help);
        for (size_t i = 0; i < values.size(); ++i) {
            text_ << "dflash2_" << name << "{" << label << "=\"" << i << "\"} " << values[i] << "\n";
        }
    }

    std::string text() const { return text_.str(); }

private:
    void head(const char * name, const char * help) {
        text_ << "# HELP dflash2_" << name << " " << help << "\n# TYPE dflash2_" << name << " counter\n";
    }

    std::ostringstream text_;
};

}  // namespace

common_json timings_json(const Stats & stats, const std::vector<Cycle> * trace) {
    common_json result = {
        { "verify_steps", stats.verify_steps },
        { "draft_tokens", stats.draft_tokens },
        { "accepted_tokens", stats.accepted_tokens },
        { "accepted_per_position", stats.accepted_per_position },
        { "depth_histogram", stats.depth_histogram },
        { "verify_rule", stats.verify_rule },
        { "fused_ops", stats.fused_ops },
        { "draft_seconds", stats.draft_seconds },
        { "inject_seconds", stats.inject_seconds },
        { "verify_seconds", stats.verify_seconds },
        { "sample_seconds", stats.sample_seconds },
        { "mean_acceptance_length", stats.mean_acceptance_length() },
        { "acceptance_rate", stats.acceptance_rate() },
    };
    if (trace) {
        common_json cycles = common_json::array();
        for (const Cycle & cycle : *trace) {
            cycles.push_back({
                { "position", cycle.position },
                { "depth", cycle.depth },
                { "draft", cycle.draft },
                { "n_accepted", cycle.n_accepted },
                { "token", cycle.token },
            });
        }
        result["trace"] = cycles;
    }
    return result;
}

std::string metrics_text(const Stats & total) {
    Metrics metrics;
    metrics.counter("verify_steps_total", "Target passes after the prompt, those without a draft included.",
                    (double) total.verify_steps);
    metrics.counter("draft_tokens_total", "Drafted tokens given to the target to verify.", (double) total.draft_tokens);
    metrics.counter("accepted_tokens_total", "Drafted tokens that were accepted.", (double) total.accepted_tokens);
    metrics.counters("accepted_tokens_per_position_total",
                     "Cycles in which the draft token at this position was accepted.", "position",
                     total.accepted_per_position);
    metrics.counters("cycles_total", "Cycles by the number of draft tokens they verified.", "depth",
                     total.depth_histogram);
    metrics.counter("draft_seconds_total", "Time drafting blocks.", total.draft_seconds);
    metrics.counter("inject_seconds_total", "Time writing target features into the drafter's cache.",
                    total.inject_seconds);
    metrics.counter("verify_seconds_total", "Time of target passes after the prompt.", total.verify_seconds);
    metrics.counter("sample_seconds_total", "Time walking, deciding about drafts and sampling.", total.sample_seconds);
    return metrics.text();
}

}  // namespace dflash2
