package admin

import (
	"context"
	"time"

	"github.com/valyala/fasthttp"
)

const kvLimit = 5 * time.Second // for the proxy to report

// kv answers what the proxy reports of KV transfer; null while there is none.
func (a *Admin) kv(ctx *fasthttp.RequestCtx) {
	limited, cancel := context.WithTimeout(context.Background(), kvLimit)
	defer cancel()
	report, err := a.config.KV(limited)
	if err != nil {
		adminError(ctx, fasthttp.StatusServiceUnavailable, "proxy", "the proxy does not report: "+err.Error(), "see the daemon's log")
		return
	}
	writeJSON(ctx, report)
}
