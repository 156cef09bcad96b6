// Copyright (c) gpuops.nvidia contributors
// SPDX-License-Identifier: GPL-3.0-or-later

// Command dcgm-exporter is the laboratory's stand-in for NVIDIA's DCGM exporter. DCGM itself is a closed library that
// drives hardware; this program reads what it publishes from NVML instead. Settings, paths, metric names and labels are
// the exporter's, so that manifests, scrape configurations and alert rules can be tried against it; every HELP line and
// the metric gpulab_stand_in say what it is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

type options struct {
	counters   string
	listen     string
	interval   time.Duration
	xidWindow  time.Duration
	clkWindow  time.Duration
	kubernetes bool
	socket     string
	resources  []string
	hostname   string
}

func main() {
	chosen, err := parseOptions(os.Args[1:])
	if err == nil {
		err = serve(chosen)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatalf("dcgm-exporter (laboratory stand-in): %v", err)
	}
}

func parseOptions(arguments []string) (options, error) {
	chosen := options{}
	flags := flag.NewFlagSet("dcgm-exporter", flag.ContinueOnError)
	text := func(target *string, short, long, env, standard string) {
		value := environment(env, standard)
		flags.StringVar(target, short, value, "same as --"+long)
		flags.StringVar(target, long, value, "environment "+env)
	}
	interval, noHostname, kubernetes := "", false, false
	text(&chosen.counters, "f", "collectors", "DCGM_EXPORTER_COLLECTORS", "/etc/dcgm-exporter/default-counters.csv")
	text(&chosen.listen, "a", "address", "DCGM_EXPORTER_LISTEN", ":9400")
	text(&interval, "c", "collect-interval", "DCGM_EXPORTER_INTERVAL", "30000")
	for _, name := range []string{"k", "kubernetes"} {
		flags.BoolVar(&kubernetes, name, enabled("DCGM_EXPORTER_KUBERNETES"), "environment DCGM_EXPORTER_KUBERNETES")
	}
	for _, name := range []string{"n", "no-hostname"} {
		flags.BoolVar(&noHostname, name, enabled("DCGM_EXPORTER_NO_HOSTNAME"), "environment DCGM_EXPORTER_NO_HOSTNAME")
	}
	if err := flags.Parse(arguments); err != nil {
		return chosen, err
	}
	var err error
	if chosen.interval, err = milliseconds("collect interval", interval); err != nil {
		return chosen, err
	}
	if chosen.xidWindow, err = window("DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE"); err != nil {
		return chosen, err
	}
	if chosen.clkWindow, err = window("DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE"); err != nil {
		return chosen, err
	}
	chosen.kubernetes = kubernetes
	chosen.socket = environment("DCGM_POD_RESOURCES_KUBELET_SOCKET", "/var/lib/kubelet/pod-resources/kubelet.sock")
	chosen.resources = strings.FieldsFunc(os.Getenv("NVIDIA_RESOURCE_NAMES"), func(c rune) bool { return c == ',' })
	if !noHostname {
		if chosen.hostname = os.Getenv("NODE_NAME"); chosen.hostname == "" {
			chosen.hostname, err = os.Hostname()
		}
	}
	return chosen, err
}

func environment(name, standard string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return standard
}

func enabled(name string) bool {
	value, err := strconv.ParseBool(os.Getenv(name))
	return err == nil && value
}

func window(name string) (time.Duration, error) {
	return milliseconds(name, environment(name, "300000"))
}

func milliseconds(what, text string) (time.Duration, error) {
	value, err := strconv.Atoi(text)
	if err != nil || value < 1 {
		return 0, fmt.Errorf("%s: found %q, wanted a positive number of milliseconds", what, text)
	}
	return time.Duration(value) * time.Millisecond, nil
}

// serve publishes what the last collection found; a scrape never waits for a GPU.
func serve(chosen options) error {
	counters, err := readCounters(chosen.counters)
	if err != nil {
		return err
	}
	watch, err := openWatch(chosen)
	if err != nil {
		return err
	}
	defer watch.close()
	ending, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	var page atomic.Pointer[string]
	collect := func() {
		text := render(counters, watch.collect(), chosen)
		page.Store(&text)
	}
	collect()
	go every(ending, chosen.interval, collect)
	go watch.followXids(ending)

	routes := http.NewServeMux()
	routes.HandleFunc("/metrics", func(answer http.ResponseWriter, _ *http.Request) {
		answer.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = answer.Write([]byte(*page.Load()))
	})
	routes.HandleFunc("/health", func(answer http.ResponseWriter, _ *http.Request) {
		_, _ = answer.Write([]byte("OK\n"))
	})
	server := &http.Server{Addr: chosen.listen, Handler: routes, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ending.Done()
		_ = server.Close()
	}()
	log.Printf("laboratory stand-in for DCGM exporter: %d GPUs, listening on %s", watch.count(), chosen.listen)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func every(ending context.Context, interval time.Duration, do func()) {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ending.Done():
			return
		case <-ticks.C:
			do()
		}
	}
}
