/* mpi_dedup.c - dispatch and combine by MPI_Alltoallv, one copy of a token for each rank that holds some of its experts.
 *
 * The number of copies goes first. What goes to a rank is a section: a header for each copy, which names the token's experts
 * there and their weights, then the rows. The receiver copies each row to its experts. On the way back, the rank of the experts
 * adds their weighted outputs and puts the sum in the place of the row; the token's rank adds these.
 * For the rank's own experts there is a section too, which MPI does not move; its rows are read from x. */
#include <mpi.h>

#include "problem.h"
#include "rows.h"
#include "side.h"
#include "side_mpi.h"

const int side_has_results = 1;
const int side_sends_sums = 1;

enum { LINE = 64 }; /* sections are counted in lines of so many bytes */

struct entry {
  int32_t expert; /* local */
  float weight;
};

struct header {
  int32_t token, entries;
  struct entry entry[];
};

static const struct problem *p;
static size_t header_bytes;
static char *sent, *received; /* sections by rank: of the rank's tokens, and of the others' */
static uint16_t *rows;        /* by expert, then rank, then token */
static int *slot;             /* [tokens, ranks] which copy of that rank's section is the token's; -1: none */
static int *place;            /* for each entry of each copy, in the order of headers: its row in rows */
static int *next;             /* [most_local] where the next row of the expert goes */
static int copies_to[MAX_RANKS], copies_from[MAX_RANKS];
static char *section_to[MAX_RANKS], *section_from[MAX_RANKS]; /* from the own rank: the same */
static int current_tokens;

static size_t whole_lines(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }
static size_t headers_bytes(int copies) { return whole_lines((size_t)copies * header_bytes); }
static size_t rows_bytes(int copies) { return whole_lines((size_t)copies * row_bytes(p)); }

static struct header *header_of(char *section, int copy) {
  return (struct header *)(void *)(section + (size_t)copy * header_bytes);
}

static uint16_t *row_of(char *section, int copies, int copy) {
  return (uint16_t *)(void *)(section + headers_bytes(copies) + (size_t)copy * row_bytes(p));
}

/* How many of the tokens of rank `from` have an expert on rank `to`, and how many entries there in all. */
static int count_copies(int from, int to, size_t *entries) {
  int copies = 0;
  for (int t = 0; t < p->tokens; t++) {
    const int32_t *idx = idx_of(p, from, t);
    int here = 0;
    for (int k = 0; k < p->topk; k++) here += idx[k] >= 0 && p->rank_of[idx[k]] == to;
    copies += here > 0;
    *entries += (size_t)here;
  }
  return copies;
}

/* The buffers are as large as the problem's routing makes them, which is the most that the side can meet. */
void side_prepare(const struct problem *problem) {
  p = problem;
  int most_entries = p->topk < p->most_local ? p->topk : p->most_local;
  header_bytes = sizeof(struct header) + (size_t)most_entries * sizeof(struct entry);
  size_t to_send = 0, to_receive = 0, entries = 0, elsewhere = 0;
  for (int r = 0; r < p->ranks; r++) {
    int to = count_copies(p->rank, r, &elsewhere), from = count_copies(r, p->rank, &entries);
    to_send += headers_bytes(to) + rows_bytes(to);
    if (r != p->rank) to_receive += headers_bytes(from) + rows_bytes(from);
  }
  sent = touched(to_send);
  received = touched(to_receive);
  rows = touched(entries * row_bytes(p));
  place = touched(entries * sizeof *place);
  slot = touched((size_t)p->tokens * (size_t)p->ranks * sizeof *slot);
  next = touched((size_t)p->most_local * sizeof *next);
  side_mpi_make_unit(LINE);
}

/* Finds the slot of each token in each rank's section. */
static void assign_slots(int tokens) {
  memset(copies_to, 0, sizeof copies_to);
  memset(slot, 0xff, (size_t)tokens * (size_t)p->ranks * sizeof *slot);
  for (int t = 0; t < tokens; t++) {
    const int32_t *idx = idx_of(p, p->rank, t);
    int *slots = slot + (size_t)t * (size_t)p->ranks;
    for (int k = 0; k < p->topk; k++) {
      if (idx[k] < 0) continue;
      int to = p->rank_of[idx[k]];
      if (slots[to] < 0) slots[to] = copies_to[to]++;
    }
  }
}

static void lay_out(void) {
  char *to = sent, *from = received;
  for (int r = 0; r < p->ranks; r++) {
    section_to[r] = to;
    to += headers_bytes(copies_to[r]) + rows_bytes(copies_to[r]);
    section_from[r] = r == p->rank ? section_to[r] : from;
    if (r != p->rank) from += headers_bytes(copies_from[r]) + rows_bytes(copies_from[r]);
  }
}

static void pack(const uint16_t *x, int tokens) {
  for (int t = 0; t < tokens; t++) {
    const int32_t *idx = idx_of(p, p->rank, t);
    const float *weights = weights_of(p, p->rank, t);
    const int *slots = slot + (size_t)t * (size_t)p->ranks;
    for (int r = 0; r < p->ranks; r++) {
      if (slots[r] < 0) continue;
      struct header *h = header_of(section_to[r], slots[r]);
      *h = (struct header){.token = t, .entries = 0};
      if (r != p->rank) memcpy(row_of(section_to[r], copies_to[r], slots[r]), x + (size_t)t * (size_t)p->hidden, row_bytes(p));
    }
    for (int k = 0; k < p->topk; k++) {
      if (idx[k] < 0) continue;
      int to = p->rank_of[idx[k]];
      struct header *h = header_of(section_to[to], slots[to]);
      h->entry[h->entries++] = (struct entry){.expert = idx[k] - p->first_expert[to], .weight = weights[k]};
    }
  }
}

/* Sections to the others and from them; without headers on the way back. */
static void exchange(int back) {
  int sends[MAX_RANKS], send_at[MAX_RANKS], receives[MAX_RANKS], receive_at[MAX_RANKS];
  for (int r = 0; r < p->ranks; r++) {
    size_t to_headers = headers_bytes(copies_to[r]), from_headers = headers_bytes(copies_from[r]);
    int moves = r != p->rank;
    send_at[r] = moves ? (int)((size_t)(section_to[r] - sent + (back ? (ptrdiff_t)to_headers : 0)) / LINE) : 0;
    receive_at[r] = moves ? (int)((size_t)(section_from[r] - received + (back ? (ptrdiff_t)from_headers : 0)) / LINE) : 0;
    sends[r] = moves ? (int)((rows_bytes(copies_to[r]) + (back ? 0 : to_headers)) / LINE) : 0;
    receives[r] = moves ? (int)((rows_bytes(copies_from[r]) + (back ? 0 : from_headers)) / LINE) : 0;
  }
  if (back) {
    MPI_Alltoallv(received, receives, receive_at, side_mpi_unit, sent, sends, send_at, side_mpi_unit, MPI_COMM_WORLD);
  } else {
    MPI_Alltoallv(sent, sends, send_at, side_mpi_unit, received, receives, receive_at, side_mpi_unit, MPI_COMM_WORLD);
  }
}

/* Where each expert's rows begin. Returns their number. */
static int lay_out_rows(void) {
  memset(next, 0, (size_t)p->most_local * sizeof *next);
  for (int r = 0; r < p->ranks; r++) {
    for (int copy = 0; copy < copies_from[r]; copy++) {
      const struct header *h = header_of(section_from[r], copy);
      for (int i = 0; i < h->entries; i++) next[h->entry[i].expert]++;
    }
  }
  int begin = 0;
  for (int e = 0; e < p->most_local; e++) {
    int count = next[e];
    next[e] = begin;
    begin += count;
  }
  return begin;
}

static void fan_out(const uint16_t *x) {
  int *to = place;
  for (int r = 0; r < p->ranks; r++) {
    for (int copy = 0; copy < copies_from[r]; copy++) {
      const struct header *h = header_of(section_from[r], copy);
      const uint16_t *own = x + (size_t)h->token * (size_t)p->hidden;
      const uint16_t *from = r == p->rank ? own : row_of(section_from[r], copies_from[r], copy);
      for (int i = 0; i < h->entries; i++) {
        *to = next[h->entry[i].expert]++;
        memcpy(rows + (size_t)*to++ * (size_t)p->hidden, from, row_bytes(p));
      }
    }
  }
}

const uint16_t *side_dispatch(const uint16_t *x, int tokens, size_t *count) {
  current_tokens = tokens;
  assign_slots(tokens);
  MPI_Alltoall(copies_to, 1, MPI_INT, copies_from, 1, MPI_INT, MPI_COMM_WORLD);
  lay_out();
  pack(x, tokens);
  exchange(0);
  *count = (size_t)lay_out_rows();
  fan_out(x);
  return rows;
}

/* The sums of this rank's experts, each in the place of the copy that it answers. */
static void add_experts(const uint16_t *y) {
  const int *from = place;
  for (int r = 0; r < p->ranks; r++) {
    for (int copy = 0; copy < copies_from[r]; copy++) {
      const struct header *h = header_of(section_from[r], copy);
      const uint16_t *terms[MAX_TOPK];
      float weights[MAX_TOPK];
      for (int i = 0; i < h->entries; i++) {
        terms[i] = y + (size_t)*from++ * (size_t)p->hidden;
        weights[i] = h->entry[i].weight;
      }
      add_rows(terms, weights, h->entries, p->hidden, row_of(section_from[r], copies_from[r], copy));
    }
  }
}

void side_combine(const uint16_t *y, uint16_t *out) {
  add_experts(y);
  exchange(1);
  for (int t = 0; t < current_tokens; t++) {
    const uint16_t *terms[MAX_RANKS];
    float ones[MAX_RANKS];
    int n = 0;
    for (int r = 0; r < p->ranks; r++) {
      int copy = slot[(size_t)t * (size_t)p->ranks + (size_t)r];
      if (copy < 0) continue;
      terms[n] = row_of(section_to[r], copies_to[r], copy);
      ones[n++] = 1;
    }
    add_rows(terms, ones, n, p->hidden, out + (size_t)t * (size_t)p->hidden);
  }
}
