// Copyright (c) gpuops.nvidia contributors
// SPDX-License-Identifier: GPL-3.0-or-later

package main

import (
	"fmt"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// counter is one line of the list of fields to publish.
type counter struct {
	field, kind, help string
}

// label is one name and value of a series; their order is the order on the line.
type label struct{ name, value string }

// sample is one value of one field, of a GPU or of an instance of one.
type sample struct {
	field  string
	labels []label
	value  float64
}

var fieldName = regexp.MustCompile(`^DCGM_(FI|EXP)_[A-Z0-9_]+$`)

// readCounters refuses what the exporter refuses: lines without exactly three parts, and names that are not fields.
func readCounters(path string) ([]counter, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("list of fields: %w", err)
	}
	var counters []counter
	for number, line := range strings.Split(string(content), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, ",")
		if len(parts) != 3 {
			return nil, fmt.Errorf("%s line %d: found %d commas, wanted 2: %s", path, number+1, len(parts)-1, line)
		}
		read := counter{strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1]), strings.TrimSpace(parts[2])}
		if !fieldName.MatchString(read.field) {
			return nil, fmt.Errorf("%s line %d: found %q, wanted a DCGM field", path, number+1, read.field)
		}
		switch read.kind {
		case "gauge", "counter", "label":
		default:
			return nil, fmt.Errorf("%s line %d: found type %q, wanted gauge, counter or label", path, number+1, read.kind)
		}
		counters = append(counters, read)
	}
	return counters, nil
}

// render writes the page in Prometheus' text form. A field that no GPU has is left out, as the exporter does.
func render(counters []counter, found collection, chosen options) string {
	var page strings.Builder
	page.WriteString("# HELP gpulab_stand_in Programs of this node that stand in for NVIDIA's.\n" +
		"# TYPE gpulab_stand_in gauge\ngpulab_stand_in{program=\"dcgm-exporter\"} 1\n")
	var common []label
	if chosen.hostname != "" {
		common = append(common, label{"Hostname", chosen.hostname})
	}
	for _, each := range counters {
		if value, known := found.constants[each.field]; known && each.kind == "label" {
			common = append(common, label{each.field, value})
		}
	}
	for _, each := range counters {
		samples := found.of(each.field)
		if each.kind == "label" || len(samples) == 0 {
			continue
		}
		fmt.Fprintf(&page, "# HELP %s %s [laboratory stand-in]\n# TYPE %s %s\n", each.field, each.help, each.field, each.kind)
		for _, one := range samples {
			writeSample(&page, one, common, found.pods)
		}
	}
	return page.String()
}

func writeSample(page *strings.Builder, one sample, common []label, pods map[string]podUse) {
	labels := append([]label{}, one.labels[:identityLabels(one.labels)]...)
	labels = append(labels, common...)
	labels = append(labels, one.labels[identityLabels(one.labels):]...)
	if use, taken := pods[holderKey(one.labels)]; taken {
		labels = append(labels, label{"container", use.container}, label{"namespace", use.namespace}, label{"pod", use.pod})
	}
	words := make([]string, 0, len(labels))
	for _, each := range labels {
		words = append(words, each.name+"="+strconv.Quote(each.value))
	}
	fmt.Fprintf(page, "%s{%s} %s\n", one.field, strings.Join(words, ","), strconv.FormatFloat(one.value, 'f', -1, 64))
}

// identityLabels is how many of the labels say which GPU it is; they come first on a line, before the host's.
func identityLabels(labels []label) int {
	for index, each := range labels {
		if each.name == "modelName" {
			return index + 1
		}
	}
	return len(labels)
}

// holderKey is what the kubelet's device lists are compared with: the GPU, or the GPU and its instance.
func holderKey(labels []label) string {
	uuid, instance := "", ""
	for _, each := range labels {
		switch each.name {
		case "UUID":
			uuid = each.value
		case "GPU_I_ID":
			instance = each.value
		}
	}
	if instance == "" {
		return uuid
	}
	return uuid + "/" + instance
}

// collection is what one round found on the node.
type collection struct {
	samples   []sample
	constants map[string]string
	pods      map[string]podUse
}

func (c collection) of(field string) []sample {
	var chosen []sample
	for _, one := range c.samples {
		if one.field == field {
			chosen = append(chosen, one)
		}
	}
	sort.SliceStable(chosen, func(i, j int) bool { return chosen[i].labels[0].value < chosen[j].labels[0].value })
	return chosen
}
