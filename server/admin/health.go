package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"railhead/server/flight"
	"railhead/server/group"
	"railhead/server/membership"
)

// check is one named part of the daemon's health.
type check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// coreCheck sends the core a request: an answer shows that the core makes progress, not only that the process exists.
func (a *Admin) coreCheck() check {
	ctx, cancel := context.WithTimeout(context.Background(), group.AnswerTimeout)
	defer cancel()
	start := time.Now()
	if err := a.config.Core.Ask(ctx, func(*group.Groups) {}); err != nil {
		return check{"core", false, fmt.Sprintf("no answer within %v: %v", group.AnswerTimeout, err)}
	}
	return check{"core", true, fmt.Sprintf("answered in %v", time.Since(start).Round(time.Microsecond))}
}

func (a *Admin) livez(ctx *fasthttp.RequestCtx) { health(ctx, a.coreCheck()) }

// readyz: would a new group be served?
func (a *Admin) readyz(ctx *fasthttp.RequestCtx) {
	accepting := check{"accepting", true, "new groups are taken"}
	if a.config.Draining() {
		accepting = check{"accepting", false, "draining: no new groups are taken"}
	}
	n, most := a.config.Connections()
	sessions := check{"sessions", n < most, fmt.Sprintf("%d of at most %d", n, most)}
	core, groups := a.coreCheck(), check{"groups", true, "not known: the core does not answer"}
	if core.OK {
		groups = a.groupsCheck()
	}
	health(ctx, core, accepting, sessions, groups)
}

func health(ctx *fasthttp.RequestCtx, checks ...check) {
	ok := true
	for _, c := range checks {
		ok = ok && c.OK
	}
	if ctx.QueryArgs().Has("verbose") {
		writeJSON(ctx, struct {
			OK     bool    `json:"ok"`
			Checks []check `json:"checks"`
		}{ok, checks})
	} else {
		ctx.SetBodyString("ok\n")
		for _, c := range checks {
			if !c.OK {
				ctx.SetBodyString(fmt.Sprintf("%s: %s\n", c.Name, c.Text))
				break
			}
		}
	}
	if !ok {
		ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
	}
}

// worst is the most severe health.
func worst(groups []membership.GroupInfo) flight.Health {
	order := []flight.Health{flight.Idle, flight.Forming, flight.OK, flight.Stalled, flight.Broken}
	at := 0
	for i := range groups {
		at = max(at, slices.Index(order, groups[i].Health.State))
	}
	return order[at]
}

// groupsCheck reports the groups' health. It never fails: a stalled or broken group does not prevent new groups.
func (a *Admin) groupsCheck() check {
	groups, err := a.groupInfos()
	if err != nil {
		return check{"groups", true, "not known: the core does not answer"}
	}
	counts := map[flight.Health]int{}
	var stalled []string
	for _, g := range groups {
		counts[g.Health.State]++
		if g.Health.State == flight.Stalled {
			stalled = append(stalled, fmt.Sprintf("%q %s", g.Name, g.Health.Text))
		}
	}
	text := fmt.Sprintf("%d ok, %d idle, %d forming, %d stalled, %d broken", counts[flight.OK], counts[flight.Idle], counts[flight.Forming],
		counts[flight.Stalled], counts[flight.Broken])
	if len(stalled) > 0 {
		text += ": " + strings.Join(stalled[:min(len(stalled), maxNamedGroups)], "; ")
	}
	return check{"groups", true, text}
}

// maxNamedGroups is how many stalled groups a health check describes.
const maxNamedGroups = 4
