package oracle

// number is a type in which reductions are computed.
type number interface {
	float32 | float64 | int8 | uint8 | int32 | int64 | uint64
}

// fold reduces the contributions of all ranks in the order of railhead.h: in rank order within each group of reduceGroup consecutive
// ranks, then over the groups. contribution(r, into) writes rank r's elements. Conversions round every operation: without them Go may
// fuse two.
func fold[T number](op Op, world, reduceGroup int, contribution func(r int, into []T), total []T) {
	if reduceGroup <= 0 {
		reduceGroup = world
	}
	group, one := make([]T, len(total)), make([]T, len(total))
	for first := 0; first < world; first += reduceGroup {
		contribution(first, group)
		for r := first + 1; r < min(first+reduceGroup, world); r++ {
			contribution(r, one)
			combine(op, group, one)
		}
		if first == 0 {
			copy(total, group)
		} else {
			combine(op, total, group)
		}
	}
	if op == Avg {
		for i := range total {
			total[i] = T(total[i] / T(world))
		}
	}
}

// combine reduces with into acc.
func combine[T number](op Op, acc, with []T) {
	with = with[:len(acc)]
	switch op {
	case Sum, Avg, PreMulSum:
		for i := range acc {
			acc[i] = T(acc[i] + with[i])
		}
	case Prod:
		for i := range acc {
			acc[i] = T(acc[i] * with[i])
		}
	case Min:
		for i := range acc {
			acc[i] = choose(acc[i], with[i], with[i] < acc[i])
		}
	case Max:
		for i := range acc {
			acc[i] = choose(acc[i], with[i], with[i] > acc[i])
		}
	default:
		panic("oracle: op " + string(op)) // a constant of the caller
	}
}

// choose returns b where it is better or NaN and a is no NaN, else a.
func choose[T number](a, b T, better bool) T {
	switch {
	case a != a:
		return a
	case b != b, better:
		return b
	}
	return a
}
