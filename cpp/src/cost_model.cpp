#include "cost_model.h"

#include <algorithm>
#include <cmath>

namespace dflash2 {

namespace {

constexpr double  stall               = 1.4;   // times the guess: slower is a stall until it is seen twice
constexpr double  above_wider         = 1.2;   // and this many times a wider one
constexpr double  strange             = 1.2;   // times the guess: a first pass above it is doubted
constexpr int32_t memory              = 6;     // passes a knot averages over
constexpr double  first_trust         = 1.5;   // a first pass may cost this many times its share of a narrower one
constexpr double  blind_growth        = 0.3;   // of the proportional growth, where only one width is known
constexpr double  stale               = 64;    // passes elsewhere after which a knot's memory counts half
constexpr double  follows             = 16;    // passes elsewhere after which a knot follows others half way
constexpr double  follow              = 0.9;   // of a surprise too great for noise
constexpr int32_t settled             = 3;     // visits after which a knot tells others of a drift
constexpr double  most_common         = 0.5;   // of one pass, in log seconds
constexpr double  most_guessed        = 0.7;   // of all since the last visit, in log seconds
constexpr double  most_rise           = 0.5;   // of one pass, in log seconds: stalls may come in pairs
constexpr double  ageing              = 0.1;   // doubt in log seconds for each doubling of the passes elsewhere
constexpr int32_t exact_rows          = 16;    // up to here each number of rows has its own knot
constexpr int32_t same_rows           = 10;    // above, a knot stands for a tenth more or less
constexpr double  near_share          = 0.5;   // of a knot's move that the next ones above exact_rows take
constexpr double  near_log            = 0.15;  // distance in log rows at which they take 1/e of that
constexpr double  unknown_draft_share = 0.3;   // of a target pass: drafters have a fraction of its layers

}  // namespace

// Index of the knot that stands for these rows, none where there is none
size_t CostCurve::nearest(int32_t rows) const {
    size_t best = none;
    for (size_t i = 0; i < knots_.size(); ++i) {
        const int32_t distance = std::abs(knots_[i].rows - rows);
        const int32_t fewer    = std::min(knots_[i].rows, rows);
        const bool    same     = fewer > exact_rows ? distance * same_rows <= fewer : distance == 0;
        if (same && (best == none || distance < std::abs(knots_[best].rows - rows))) {
            best = i;
        }
    }
    return best;
}

bool CostCurve::reaches(int32_t rows) const {
    return seen(rows) || (!knots_.empty() && rows <= knots_.back().rows);
}

void CostCurve::record(int32_t rows, double seconds) {
    if (rows < 1 || !(seconds > 0)) {
        return;
    }
    learn(rows, seconds);
    for (Knot & knot : knots_) {
        knot.seconds = std::exp(knot.level);
    }
}

void CostCurve::learn(int32_t rows, double seconds) {
    ++n_passes_;
    const double level = std::log(seconds);
    const auto   at    = std::lower_bound(knots_.begin(), knots_.end(), rows,
                                          [](const Knot & knot, int32_t value) { return knot.rows < value; });
    const size_t index = nearest(rows);
    if (index == none) {
        double first = level;
        if (at != knots_.begin()) {
            first = std::min(first, (at - 1)->level + std::log(first_trust * rows / (at - 1)->rows));
        }
        if (at != knots_.end()) {
            first = std::min(first, at->level + std::log(above_wider));
        }
        const double expected = knots_.empty() ? first : std::log(this->seconds(rows));
        const bool   dear     = first > expected + std::log(strange);
        knots_.insert(at, Knot{ rows, first, dear ? first - expected : 0, 1, n_passes_, false, 0 });
        return;
    }

    Knot * const knot     = &knots_[index];
    const double surprise = level - std::log(this->seconds(rows));
    if (surprise > std::log(stall) && !knot->stalled) {
        knot->stalled = true;
        return;
    }
    knot->stalled         = false;
    const double age      = (double) (n_passes_ - knot->visited - 1);
    const double recalled = std::min(knot->n_visits, memory) / (1 + age / stale);
    // a pass is never fast by accident, and a slow one that repeats is no accident either
    const double gain = std::fabs(surprise) > std::log(stall) ? follow : 1 / (1 + recalled);
    const double move = std::min(gain * surprise, most_rise);
    // what a knot learns in its first visits is its own
    const double common = knot->n_visits < settled ? 0 : std::clamp(move, -most_common, most_common);
    for (Knot & other : knots_) {
        if (&other != knot) {
            const double away  = (double) (n_passes_ - other.visited - 1);
            double       share = away / (away + follows);
            if (std::min(rows, other.rows) > exact_rows) {
                const double distance = std::fabs(std::log((double) rows / other.rows));
                share                 = std::max(share, near_share * std::exp(-distance / near_log));
            }
            // one drift reaches it from many knots
            const double guessed = std::clamp(other.guessed + share * common, -most_guessed, most_guessed);
            other.level += guessed - other.guessed;
            other.guessed = guessed;
        }
    }
    knot->level += move;
    knot->guessed = surprise > std::log(stall) ? move : 0;
    knot->n_visits += 1;
    knot->visited = n_passes_;

    // measured in the same bad moment, perhaps: held to what its neighbour turns out to cost, as when it was new
    const bool was_far_too_dear = surprise < -std::log(stall);
    for (Knot & other : knots_) {
        if (was_far_too_dear && other.n_visits == 1) {
            const bool   fewer = other.rows < knot->rows;
            const double most  = fewer ? above_wider : first_trust * other.rows / knot->rows;
            other.level        = std::min(other.level, knot->level + std::log(most));
        }
    }

    // among wide passes neighbours differ by less than their noise, and a dip would draw every plan to it
    for (Knot & other : knots_) {
        const bool dips  = other.rows > knot->rows && other.level < knot->level;
        const bool rises = other.rows < knot->rows && other.level > knot->level;
        if (std::min(other.rows, knot->rows) >= exact_rows && (dips || rises)) {
            other.guessed += knot->level - other.level;
            other.level = knot->level;
        }
    }
}

double CostCurve::seconds(int32_t rows) const {
    if (knots_.empty()) {
        return 0;
    }
    const auto after = std::lower_bound(knots_.begin(), knots_.end(), rows,
                                        [](const Knot & knot, int32_t value) { return knot.rows < value; });
    if (after != knots_.end() && after->rows == rows) {
        return after->seconds;
    }
    if (after == knots_.begin()) {
        return after->seconds * (1 - blind_growth * (1 - (double) rows / after->rows));
    }
    const Knot & before = *(after - 1);
    const double least  = before.seconds;
    double       slope  = blind_growth * least / before.rows;
    if (after != knots_.end()) {
        slope = (after->seconds - least) / (after->rows - before.rows);
    } else {
        // from a knot so far away that neither noise nor one step decides
        for (const Knot & knot : knots_) {
            if (knot.rows * 4 <= before.rows) {
                slope = (least - knot.seconds) / (before.rows - knot.rows);
            }
        }
        slope = std::min(slope, least / before.rows);
    }
    return least + std::max(0.0, slope) * (rows - before.rows);
}

double CostCurve::hoped_seconds(int32_t rows) const {
    if (knots_.empty()) {
        return 0;
    }
    const size_t index = nearest(rows);
    const Knot * knot  = index == none ? nullptr : &knots_[index];
    double       share = 1;
    if (!knot) {
        const auto after = std::lower_bound(knots_.begin(), knots_.end(), rows,
                                            [](const Knot & k, int32_t value) { return k.rows < value; });
        knot             = after == knots_.begin() ? &*after : &*(after - 1);
        share            = std::min(1.0, (double) rows / knot->rows);
    }
    const double age   = (double) (n_passes_ - knot->visited);
    const double doubt = std::max(0.0, knot->guessed) + ageing * std::log2(1 + age / stale);
    return std::min(seconds(rows), share * std::exp(knot->level - doubt));
}

std::vector<std::pair<int32_t, double>> CostCurve::ms_by_rows() const {
    std::vector<std::pair<int32_t, double>> result;
    for (const Knot & knot : knots_) {
        result.emplace_back(knot.rows, 1e3 * knot.seconds);
    }
    return result;
}

double CostModel::draft_seconds(int32_t rows) const {
    return draft.empty() ? unknown_draft_share * verify.seconds(rows) : draft.seconds(rows);
}

}  // namespace dflash2
