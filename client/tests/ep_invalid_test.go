package tests

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"railhead/alltoall"
	"railhead/client"
	"railhead/internal/wire"
)

// spoiled makes an input invalid in one way; words are those of the error or the report.
type spoiled struct {
	name   string
	spoil  func(in *client.EPTokensIn)
	counts client.EPReport // the report with DropInvalid
	words  []string
}

// validTokens returns three valid tokens for smallEP with any dtype.
func validTokens(c client.EPConfig, rank int) client.EPTokensIn {
	r := rand.New(rand.NewPCG(uint64(rank), 3))
	in := client.EPTokensIn{Tokens: 3, Idx64: []int64{0, 5, -1, 4, 3, 2}}
	in.X, in.XScales = drawTokens(r, c, c.MaxTokensPerRank+2)
	in.Weights = []float32{1, 2, 3, 4, 5, 6}
	return in
}

func spoiledRoutings() []spoiled {
	at := func(i int, id int64) func(*client.EPTokensIn) {
		return func(in *client.EPTokensIn) { in.Idx64[i] = id }
	}
	narrow := func(i int, id int32) func(*client.EPTokensIn) {
		return func(in *client.EPTokensIn) {
			for _, wide := range in.Idx64 {
				in.Idx = append(in.Idx, int32(wide))
			}
			in.Idx[i], in.Idx64 = id, nil
		}
	}
	id, twice := client.EPReport{InvalidIDs: 1}, client.EPReport{DuplicateIDs: 1}
	return []spoiled{
		{"-2", at(2, -2), id, []string{"rank 1: token 1: topk_idx[0] is -2", "0..5"}},
		{"E", at(5, 6), id, []string{"rank 1: token 2: topk_idx[1] is 6", "0..5"}},
		{"E as int32", narrow(5, 6), id, []string{"rank 1: token 2: topk_idx[1] is 6", "0..5"}},
		{"the least int32", narrow(0, math.MinInt32), id, []string{"token 0: topk_idx[0] is -2147483648"}},
		{"beyond int32", at(1, 1<<32), id, []string{"token 0: topk_idx[1] is 4294967296"}},
		{"-1 of 32 bits", at(1, math.MaxUint32), id, []string{"token 0: topk_idx[1] is 4294967295"}},
		{"the least int64", at(3, math.MinInt64), id, []string{"token 1: topk_idx[1] is -9223372036854775808"}},
		{"twice", at(5, 3), twice, []string{"rank 1: token 2: topk_idx[1] is 3", "named before"}},
		{"too many tokens", func(in *client.EPTokensIn) {
			in.Tokens, in.Weights = 6, nil
			in.Idx64 = append(in.Idx64, 0, 1, 999, 999, 999, 999) // the ids of excess tokens are not checked
		}, client.EPReport{ExcessTokens: 2}, []string{"rank 1: 6 tokens", "max_tokens_per_rank is 4"}},
	}
}

// spoiledTokens puts NaNs and infinities into token 2 or its scales.
func spoiledTokens(c client.EPConfig) (all []spoiled) {
	add := func(name, said string, spoil func(in *client.EPTokensIn)) {
		all = append(all, spoiled{name, spoil, client.EPReport{NonFinite: 1}, []string{"rank 1: token 2: " + said}})
	}
	bits := map[client.Dtype]map[uint32]string{
		client.F32:     {0x7f800000: "+infinity", 0xff800000: "-infinity", 0x7f800001: "NaN", 0xffc00000: "NaN"},
		client.BF16:    {0x7f80: "+infinity", 0xff80: "-infinity", 0x7f81: "NaN", 0xffc0: "NaN"},
		client.F16:     {0x7c00: "+infinity", 0xfc00: "-infinity", 0x7c01: "NaN", 0xfe00: "NaN"},
		client.FP8E4M3: {0x7f: "NaN", 0xff: "NaN"},
	}
	for pattern, value := range bits[c.Dtype] {
		for _, element := range []int{0, c.Hidden - 1} {
			add(fmt.Sprintf("%x at %d", pattern, element), fmt.Sprintf("element %d is %s", element, value), func(in *client.EPTokensIn) {
				word := binary.LittleEndian.AppendUint32(nil, pattern)
				copy(in.X[(2*c.Hidden+element)*c.Dtype.Size():], word[:c.Dtype.Size()])
			})
		}
	}
	if c.Dtype != client.FP8E4M3 {
		return all
	}
	ref := reference(c)
	add("a scale", "a scale is not finite", func(in *client.EPTokensIn) {
		last := in.XScales[3*ref.ScaleBytes()-ref.ScaleBytes()/ref.ScaleColumns():][:ref.ScaleBytes()/ref.ScaleColumns()]
		if c.Scale == client.EPScaleUE8M0 {
			last[0] = 255
			return
		}
		binary.LittleEndian.PutUint32(last, 0x7f800000)
	})
	return all
}

// epWithFP8 returns configs of every dtype with FP8 as wire_dtype.
func epWithFP8() (all []client.EPConfig) {
	for _, d := range []client.Dtype{client.F32, client.BF16, client.F16, client.FP8E4M3} {
		for _, scale := range []client.EPScale{client.EPScaleF32, client.EPScaleUE8M0} {
			c := smallEP
			c.Dtype, c.WireDtype, c.Scale, c.Hidden = d, client.FP8E4M3, scale, 133
			all = append(all, c)
		}
	}
	return all
}

// eachSpoiled runs f for every config and every kind of invalid input. Each config has a group of two ranks; rank 1's input is invalid.
func eachSpoiled(t *testing.T, drop bool, f func(t *testing.T, p *epPlay, ranks []member, eps []*client.EP, bad spoiled)) {
	s := startDaemon(t)
	for i, c := range append([]client.EPConfig{smallEP}, epWithFP8()...) {
		c.DropInvalid = drop
		c.Mode = client.EPMode(1 + i%2)
		kinds := spoiledRoutings()
		if c.WireDtype == client.FP8E4M3 {
			kinds = spoiledTokens(c)
		}
		p := playOf(t, c, 2, 1)
		p.script = []epStep{{"dispatch", 0}, {"combine", 0}}
		ranks, eps := newEPs(t, s, fmt.Sprint("invalid ", i), p)
		for _, bad := range kinds {
			f(t, p, ranks, eps, bad)
		}
		endEPs(t, ranks, eps)
	}
}

func TestInvalidInputIsRefusedAndTheRankCanTryAgain(t *testing.T) {
	eachSpoiled(t, false, func(t *testing.T, p *epPlay, ranks []member, eps []*client.EP, bad spoiled) {
		in := validTokens(p.config, 1)
		bad.spoil(&in)
		_, err := eps[1].DispatchSend(in)
		wantError(t, err, invalid, append(bad.words, "ep_dispatch_send", "nothing was sent", "RH_EP_INVALID_DROP")...)
		d, err := eps[1].Dispatch(in, &client.EPRows{Layout: client.EPTokens, Capacity: 8, X: make([]byte, 1<<14)})
		wantError(t, err, invalid, append(bad.words, "ep_dispatch:")...)
		if d != nil {
			t.Errorf("%s: the failed call returned a dispatch", bad.name)
		}
		playAll(t, bad.name, p, ranks, eps)
	})
}

func TestDroppedInvalidInputIsReportedAndTheRestIsSent(t *testing.T) {
	eachSpoiled(t, true, func(t *testing.T, p *epPlay, ranks []member, eps []*client.EP, bad spoiled) {
		all(t, ranks, func(m member) error {
			in := validTokens(p.config, m.Rank())
			if m.Rank() == 1 {
				bad.spoil(&in)
			}
			rows := client.EPRows{Layout: client.EPTokens, Capacity: 8, X: make([]byte, 1<<14)}
			d, err := eps[m.Rank()].Dispatch(in, &rows)
			if err != nil {
				return err
			}
			if m.Rank() == 1 {
				err = missing(bad.name, rows.Report.Message, bad.words...)
				rows.Report.Message = ""
				err = errors.Join(err, same("dispatch and its rows", []uint64{rows.Report.Rows, rows.Report.Tokens}, []uint64{rows.Rows, rows.Tokens}))
				rows.Report.Dispatch, rows.Report.Rows, rows.Report.Tokens = 0, 0, 0
				if !reflect.DeepEqual(rows.Report, bad.counts) {
					err = errors.Join(err, fmt.Errorf("%s: the report is %+v", bad.name, rows.Report))
				}
			}
			return errors.Join(err, d.Release())
		})
		playAll(t, bad.name, p, ranks, eps)
	})
}

func TestTokensWithoutAnExpertMayHoldAnything(t *testing.T) {
	s := startDaemon(t)
	for i, c := range epWithFP8() {
		p := playOf(t, c, 1, 0)
		ranks, eps := newEPs(t, s, fmt.Sprint("padding ", i), p)
		for _, bad := range spoiledTokens(c) {
			in := validTokens(c, 0)
			bad.spoil(&in)
			in.Idx64[4], in.Idx64[5] = -1, -1
			d, err := eps[0].Dispatch(in, &client.EPRows{Layout: client.EPTokens, Capacity: 8, X: make([]byte, 1<<14)})
			if err != nil {
				t.Fatalf("%s: %v", bad.name, err)
			}
			if err := d.Release(); err != nil {
				t.Fatal(err)
			}
		}
		endEPs(t, ranks, eps)
	}
}

func TestAHiddenThatDiffersFromTheConfigIsRefused(t *testing.T) {
	onSmallEPs(t, 1, func(p *epPlayer) error {
		in := p.in(&p.rounds[0])
		in.Hidden = 9
		in.X = make([]byte, 4*9*4)
		_, err := p.ep.DispatchSend(in)
		return errors.Join(
			refused("hidden 9", err, invalid, fmt.Sprintf("rank %d", p.rank), "hidden is 9", "made for 8"),
			p.steps(epStep{"dispatch", 0}, epStep{"combine", 0}))
	})
}

// toOneExpert sends all tokens of both ranks to expert 4, and one of rank 0 also to expert 5.
func toOneExpert(t testing.TB, drop bool) *epPlay {
	t.Helper()
	c := smallEP
	c.DropInvalid = drop
	p := playOf(t, c, 2, 0)
	r := rand.New(rand.NewPCG(1, 1))
	inputs := make([]alltoall.RankInput, 2)
	for rank := range inputs {
		inputs[rank].TopKIdx = slices.Repeat([]int64{4, -1}, 3)
		inputs[rank].X = drawNumbers(r, c.Dtype, 3*c.Hidden)
	}
	inputs[0].TopKIdx[1] = 5
	p.drawRound(t, r, inputs)
	return p
}

func TestACapacityThatIsTooSmallIsRefusedAndAnotherReceiveWorks(t *testing.T) {
	s := startDaemon(t)
	p := toOneExpert(t, false)
	ranks, eps := newEPs(t, s, "", p)
	for _, try := range []struct {
		rows  client.EPRows
		words []string
	}{
		{client.EPRows{Layout: client.EPPadded, Capacity: 5}, []string{"6 rows for local expert 1", "capacity is 5", "receive again"}},
		{client.EPRows{Layout: client.EPFlat, Capacity: 6}, []string{"7 rows", "capacity is 6"}},
		{client.EPRows{Layout: client.EPFlat, Capacity: 31, Alignment: 16}, []string{"32 rows", "capacity is 31"}},
		{client.EPRows{Layout: client.EPTokens, Capacity: 5}, []string{"6 rows", "capacity is 5"}},
	} {
		all(t, ranks, func(m member) error {
			d, err := eps[m.Rank()].DispatchSend(newEPPlayer(p, m, eps[m.Rank()]).in(&p.rounds[0]))
			if err != nil {
				return err
			}
			rows := try.rows
			rows.X = make([]byte, 1<<12)
			if m.Rank() == 1 { // it has experts 3, 4 and 5
				if err := refused("too small a capacity", d.Recv(&rows), wire.ResultLimit, append(try.words, "rank 1")...); err != nil {
					return err
				}
			}
			rows.Capacity = 32
			if err := d.Recv(&rows); err != nil {
				return err
			}
			return d.Release()
		})
	}
	endEPs(t, ranks, eps)
}

// More dispatches than are ever in flight: each report has its own rows only.
func TestDroppedRowsBeyondCapacityAreReported(t *testing.T) {
	s := startDaemon(t)
	p := toOneExpert(t, true)
	ranks, eps := newEPs(t, s, "", p)
	for range 4 {
		all(t, ranks, func(m member) error {
			rows := client.EPRows{Layout: client.EPPadded, Capacity: 2, X: make([]byte, 1<<12), Counts: make([]int32, 3)}
			d, err := eps[m.Rank()].Dispatch(newEPPlayer(p, m, eps[m.Rank()]).in(&p.rounds[0]), &rows)
			if err != nil {
				return err
			}
			if m.Rank() == 1 {
				err = errors.Join(missing("report", rows.Report.Message, "rank 1: 6 rows for local expert 1, capacity is 2"),
					same("over capacity", []uint64{rows.Report.OverCapacity}, []uint64{4}), same("counts", rows.Counts, []int32{0, 2, 1}))
			}
			return errors.Join(err, d.Release())
		})
	}
	endEPs(t, ranks, eps)
}
