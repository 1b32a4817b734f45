package server

import (
	"fmt"
	"log/slog"
	"os"

	"railhead/internal/proxycontrol"
	kvproxy "railhead/kvxfer/proxy"
	"railhead/server/proxy"
)

// RunProxy is the proxy process of a daemon, which has started it. It returns when the daemon goes. threads copy, 0 = the default.
func RunProxy(threads int, log *slog.Logger) error {
	control, err := proxycontrol.Open(os.NewFile(proxy.ControlFD, "daemon"))
	if err != nil {
		return fmt.Errorf("proxy: no socket of a daemon, which starts this process itself: %w", err)
	}
	return kvproxy.Serve(control, kvproxy.Config{Threads: threads, Log: log})
}
