#pragma once

#include "dflash2/engine.h"
#include "random.h"

#include <vector>

namespace dflash2 {

struct Outcome {
    Token token;
    float p;
};

// A distribution over tokens: each at most once, those left out have probability 0. Weights that need not add up to 1
// where a function says so.
using Law = std::vector<Outcome>;

float probability(const Law & law, Token token);
// Of a few tokens, in one pass over the law
std::vector<float> probabilities(const Law & law, const std::vector<Token> & tokens);

// One draw by the weights of `law`, which has one above 0: by inverse distribution function, in the order they stand in.
size_t draw_index(const Law & law, Random & random);
Token  draw(const Law & law, Random & random);

// What is left of scale * p where q is taken away: the weights max(scale * p - q, 0), not normalised. May be empty
Law residual(const Law & p, const Law & q, double scale = 1.0);

// Sum of the weights
double mass(const Law & law);
double residual_mass(const Law & p, const Law & q, double scale);

}  // namespace dflash2
