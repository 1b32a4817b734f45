package admin

import (
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"

	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/group"
)

// trace answers /v1/trace?group=NAME&last=N.
func (a *Admin) trace(ctx *fasthttp.RequestCtx) {
	args := ctx.QueryArgs()
	n := wire.FlightRecords
	if args.Has("last") {
		var err error
		if n, err = strconv.Atoi(string(args.Peek("last"))); err != nil || n < 1 || n > wire.FlightRecords {
			adminError(ctx, fasthttp.StatusBadRequest, "invalid_argument", fmt.Sprintf("last=%q is no number of records", args.Peek("last")),
				fmt.Sprintf("use 1 to %d", wire.FlightRecords))
			return
		}
	}
	name := string(args.Peek("group"))
	answer, err := group.AskFor(a.config.Core, func(g *group.Groups) flight.Traces { return g.Traces(name, n) })
	if err != nil {
		coreStuck(ctx)
		return
	}
	writeCompactJSON(ctx, answer) // 65536 records of one group of 64 ranks
}
