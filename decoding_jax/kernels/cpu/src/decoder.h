// The layers of a decoder, see `models/transformer/layers.py`, in one call.
//
// Between its products XLA has a dozen operations a layer. They take as long as
// those of a small model, and each is compiled by itself.
//
// Tokens stand after one another, [tokens, features]. Numbers are rounded to
// the type of activations, A, where arrays of XLA are, and kept in float32.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "simd.h"
#include "norm.h"
#include "product.h"
#include "thread_team.h"

// How large a decoder and its arguments are.
struct Sizes {
  int64_t rows, length, features, heads, groups, channels, hidden;
  // Of a cache and of a block.
  int64_t slots, nodes;

  int64_t tokens() const { return rows * length; }
  int64_t keys() const { return heads * channels; }
  int64_t queries() const { return groups * keys(); }
};

// What a config says besides; norms are ahead of what reads the residual
// stream, unless they are after the sum.
struct Kind {
  float epsilon, query_scale, cap, residual_scale;
  bool plus_one, joint_norm, norm_of_sum, parallel;
  // See `Activate`.
  int64_t activation;
};

// Weights [outputs, inputs]; scales [outputs] and a bias [outputs], or none.
template <class A, class W>
struct Linear {
  const W* weights;
  const float* scales;
  const A* bias;
  int64_t outputs;
};

// With a bias the mean is taken away as well. Without a scale there is none.
template <class A>
struct Scale {
  const A *scale, *bias;
};

// Parameters of a layer, of which the gate's weights may be null.
template <class A, class W>
struct Layer {
  Scale<A> attention_norm, query_norm, key_norm, attention_out_norm;
  Scale<A> feed_forward_norm, feed_forward_out_norm;
  Linear<A, W> query, key, value, out, gate, up, down;
};

// Keys and values of a layer: committed, and those of a block, which are
// written from a slot on, where fresh tokens go.
template <class A>
struct Memory {
  const A *prefix_keys, *prefix_values;
  A *keys, *values;
  int64_t slot;
};

// What tokens see: masks [B, prefix_rows, S] and [B, T, N], and how far their
// positions turn so many planes, [tokens, planes].
struct View {
  const float *cos, *sin;
  const uint8_t *prefix, *block;
  int64_t prefix_rows, planes;
};

inline void Put(float* to, float x) { *to = x; }
inline void Put(uint16_t* to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  *to = bits >> 16;
}

inline float Sum(const float* x, int64_t size) {
  const int64_t whole = size / kLanes * kLanes;
  Vector sums[1] = {LoadFirst(x + whole, size - whole)};
  for (int64_t i = 0; i < whole; i += kLanes) sums[0] += Load(x + i);
  float sum[1];
  Sums(sums, sum);
  return sum[0];
}

// 1 / (1 + e^-x).
inline Vector Sigmoid(Vector x) {
  const Vector small = Exp(x < 0 ? x : -x);
  return (x < 0 ? small : Vector{} + 1) / (1 + small);
}

inline Vector Silu(Vector x) { return x * Sigmoid(x); }

// By its tanh approximation: (1 + tanh(z)) / 2 is the sigmoid of 2 z.
inline Vector Gelu(Vector x) {
  return x * Sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
}

inline Vector Relu(Vector x) { return x < 0 ? Vector{} : x; }

// x Phi(x), where the tail 1 - erf(z) is a series of t times e^-z^2, to 2e-7
// (Abramowitz and Stegun, 7.1.26).
inline Vector ErfGelu(Vector x) {
  const Vector z = (x < 0 ? -x : x) * 0.70710678f, t = 1 / (1 + 0.3275911f * z);
  Vector series = Vector{} + 1.061405429f;
#pragma GCC unroll 8
  for (float factor : {-1.453152027f, 1.421413741f, -0.284496736f,
                       0.254829592f}) {
    series = series * t + factor;
  }
  const Vector tail = series * t * Exp(-z * z) * 0.5f;
  return x * (x < 0 ? tail : 1 - tail);
}

template <class A, class W>
class Decoder {
 public:
  // Numbers of `scratch` that are needed.
  static int64_t Scratch(const Sizes& sizes) {
    return sizes.tokens() * (3 * sizes.features +
                             std::max(2 * (sizes.queries() + sizes.keys()),
                                      2 * sizes.hidden));
  }

  Decoder(Team& team, const Sizes& sizes, const Kind& kind, float* scratch)
      : team_(team), s_(sizes), kind_(kind), tokens_(sizes.tokens()),
        x_(scratch), y_(x_ + tokens_ * s_.features),
        z_(y_ + tokens_ * s_.features), q_(z_ + tokens_ * s_.features),
        k_(q_ + tokens_ * s_.queries()), v_(k_ + tokens_ * s_.keys()),
        by_head_(v_ + tokens_ * s_.keys()), hidden_(q_),
        up_(hidden_ + tokens_ * s_.hidden) {}

  void Begin(const A* x) {
    for (int64_t i = 0; i < tokens_ * s_.features; ++i) x_[i] = Number(x[i]);
  }

  void End(A* x) const {
    for (int64_t i = 0; i < tokens_ * s_.features; ++i) Put(x + i, x_[i]);
  }

  void Through(const Layer<A, W>& layer, const Memory<A>& memory,
               const View& view) {
    Project({&layer.query, &layer.key, &layer.value}, {q_, k_, v_},
            Read(layer.attention_norm, y_), s_.features);
    if (kind_.joint_norm) {
      Norms(layer.query_norm, q_, q_, s_.queries());
      Norms(layer.key_norm, k_, k_, s_.keys());
    }
    const float* read = z_;
    if (kind_.parallel) Read(layer.feed_forward_norm, z_);
    team_.Share(s_.rows * s_.heads, 1, [&](int64_t from, int64_t to) {
      for (; from < to; ++from) Attend(layer, memory, view, from);
    });
    Add(layer.out, q_, s_.queries(), layer.attention_out_norm);
    if (kind_.norm_of_sum) Norms(layer.attention_norm, x_, x_, s_.features);
    if (!kind_.parallel) read = Read(layer.feed_forward_norm, z_);
    if (layer.gate.weights) {
      Project({&layer.gate, &layer.up}, {hidden_, up_}, read, s_.features);
    } else {
      Project({&layer.up}, {hidden_}, read, s_.features);
    }
    switch (kind_.activation) {
      case 0: Activate(layer, Silu); break;
      case 1: Activate(layer, Gelu); break;
      case 2: Activate(layer, Relu); break;
      default: Activate(layer, ErfGelu);
    }
    Add(layer.down, hidden_, s_.hidden, layer.feed_forward_out_norm);
    if (kind_.norm_of_sum) Norms(layer.feed_forward_norm, x_, x_, s_.features);
  }

 private:
  using Factors = std::vector<Factor<W>>;
  using Column = ColumnOf<A, W>;

  static Vector Round(Vector x) {
    return Rounded(static_cast<const A*>(nullptr), x);
  }

  // Of so many numbers each.
  template <class Function>
  void EachToken(int64_t size, Function f) {
    team_.Share(tokens_, kNumbers / size + 1, [&](int64_t from, int64_t to) {
      for (; from < to; ++from) f(from);
    });
  }

  void Norm(const Scale<A>& by, const float* x, float* y, int64_t size) const {
    if (by.bias) {
      const float mean = Sum(x, size) / size;
      std::copy(x, x + size, y);
      Combine(y, size, [=](Vector y) { return y - mean; });
      x = y;
    }
    ::Norm(x, by.scale, y, size, kind_.epsilon, kind_.plus_one);
    if (by.bias) AddBias(by.bias, y, size);
  }

  void Norms(const Scale<A>& by, const float* x, float* y, int64_t size) {
    EachToken(size, [&](int64_t t) {
      Norm(by, x + t * size, y + t * size, size);
    });
  }

  // The residual stream, in `y` if there is a norm ahead of what reads it.
  const float* Read(const Scale<A>& norm, float* y) {
    if (!norm.scale || kind_.norm_of_sum) return x_;
    Norms(norm, x_, y, s_.features);
    return y;
  }

  static void AddBias(const A* bias, float* y, int64_t size) {
    Combine(y, size, [](Vector y, Vector bias) { return Round(y + bias); },
            bias);
  }

  // Of what is gated the gate.
  template <class Function>
  void Activate(const Layer<A, W>& layer, Function f) {
    const int64_t size = s_.hidden;
    EachToken(size, [&](int64_t t) {
      float* hidden = hidden_ + t * size;
      if (layer.gate.weights) {
        Combine(hidden, size, [&](Vector gate, Vector up) {
          return Round(Round(f(gate)) * up);
        }, up_ + t * size);
      } else {
        Combine(hidden, size, [&](Vector up) { return Round(f(up)); });
      }
    });
  }

  // What a linear layer has made of a token, its outputs from one on.
  static void Finish(const Linear<A, W>& linear, float* y, int64_t first,
                     int64_t size) {
    if (linear.scales) Combine(y, size, Times, linear.scales + first);
    if (!std::is_same_v<A, float>) Combine(y, size, Round);
    if (linear.bias) AddBias(linear.bias + first, y, size);
  }

  // What is multiplied with weights; numbers have the type of activations.
  const Column* Columns(const float* x, int64_t inputs) {
    if constexpr (std::is_same_v<Column, float>) {
      return x;
    } else {
      Column* columns = Near<kInputs, Column>(tokens_ * inputs);
      EachToken(inputs, [=](int64_t t) {
        Copy(x + t * inputs, inputs, columns + t * inputs);
      });
      return columns;
    }
  }

  void Project(std::vector<const Linear<A, W>*> linears,
               std::vector<float*> results, const float* x, int64_t inputs) {
    Factors factors;
    for (size_t i = 0; i < linears.size(); ++i) {
      factors.push_back({linears[i]->weights,
                         {results[i], linears[i]->outputs}});
    }
    Products(team_, factors, Columns(x, inputs), inputs, tokens_,
             [&](int i, int64_t from, int64_t to) {
      for (int64_t t = 0; t < tokens_; ++t) {
        Finish(*linears[i], &factors[i].y(from, t), from, to - from);
      }
    });
  }

  // Adds what a linear layer makes of `from` to the residual stream.
  void Add(const Linear<A, W>& linear, const float* from, int64_t inputs,
           const Scale<A>& norm) {
    const float factor = kind_.residual_scale;
    const auto add = [&](int64_t t, int64_t first, int64_t size) {
      const int64_t at = t * s_.features + first;
      Combine(x_ + at, size, [&](Vector x, Vector y) {
        return Round(x + (factor == 1 ? y : Round(y * factor)));
      }, y_ + at);
    };
    const Factors factors = {{linear.weights, {y_, s_.features}}};
    Products(team_, factors, Columns(from, inputs), inputs, tokens_,
             [&](int, int64_t first, int64_t last) {
      for (int64_t t = 0; t < tokens_; ++t) {
        Finish(linear, y_ + t * s_.features + first, first, last - first);
        if (!norm.scale) add(t, first, last - first);
      }
    });
    if (!norm.scale) return;
    EachToken(s_.features, [&](int64_t t) {
      float* y = y_ + t * s_.features;
      Norm(norm, y, y, s_.features);
      add(t, 0, s_.features);
    });
  }

  // Channels of a head at a token, normalised and turned. A plane is channels i
  // and i + planes.
  void Turn(float* x, const Scale<A>& norm, const View& view,
            int64_t token) const {
    if (norm.scale && !kind_.joint_norm) Norm(norm, x, x, s_.channels);
    const float* cos = view.cos + token * view.planes;
    const float* sin = view.sin + token * view.planes;
    float* other = x + view.planes;
    for (int64_t i = 0; i < view.planes; ++i) {
      const float a = x[i], b = other[i];
      x[i] = a * cos[i] - b * sin[i];
      other[i] = b * cos[i] + a * sin[i];
    }
    if (!std::is_same_v<A, float>) Combine(x, 2 * view.planes, Round);
  }

  // Of one head of one row: puts its keys and values into the block, and what
  // they and those before give where its queries are.
  void Attend(const Layer<A, W>& layer, const Memory<A>& memory,
              const View& view, int64_t index) {
    const int64_t row = index / s_.heads, head = index % s_.heads;
    const int64_t size = s_.channels, first = row * s_.length;
    A* keys = memory.keys + index * size * s_.nodes + memory.slot;
    A* values = memory.values + (index * s_.nodes + memory.slot) * size;
    for (int64_t t = 0; t < s_.length; ++t) {
      const int64_t at = (first + t) * s_.keys() + head * size;
      Turn(k_ + at, layer.key_norm, view, first + t);
      for (int64_t c = 0; c < size; ++c) {
        Put(keys + c * s_.nodes + t, k_[at + c]);
        Put(values + t * size + c, v_[at + c]);
      }
    }
    float* queries = by_head_ + index * s_.groups * s_.length * size;
    const auto each_query = [&](auto f) {
      float* query = queries;
      for (int64_t g = 0; g < s_.groups; ++g) {
        for (int64_t t = first; t < first + s_.length; ++t, query += size) {
          f(q_ + t * s_.queries() + (head * s_.groups + g) * size, query, t);
        }
      }
    };
    each_query([&](float* q, float* query, int64_t t) {
      std::copy(q, q + size, query);
      Turn(query, layer.query_norm, view, t);
      Combine(query, size, [&](Vector x) {
        return Round(x * kind_.query_scale);
      });
    });
    const int64_t before = index * s_.slots * size;
    const int64_t inside = index * s_.nodes * size;
    Head<A>({{memory.prefix_keys + before, memory.prefix_values + before,
              view.prefix + row * view.prefix_rows * s_.slots, s_.slots,
              view.prefix_rows},
             {memory.keys + inside, memory.values + inside,
              view.block + row * s_.length * s_.nodes, s_.nodes, s_.length}},
            s_.groups, s_.length, size, kind_.cap)
        .Attend(queries, queries);
    each_query([&](float* q, float* query, int64_t) {
      std::copy(query, query + size, q);
      if (!std::is_same_v<A, float>) Combine(q, size, Round);
    });
  }

  Team& team_;
  const Sizes s_;
  const Kind kind_;
  const int64_t tokens_;
  // The residual stream, what attention reads and both add, and what the feed-
  // forward layer reads.
  float *const x_, *const y_, *const z_;
  float *const q_, *const k_, *const v_, *const by_head_;
  float *const hidden_, *const up_;
};
