// Copyright (c) gpuops.nvidia contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

// k3s-render renders a containerd configuration as k3s does: Go's text/template, the distribution's template under the
// name "base", and for data a structure with the fields of its ContainerdConfig that templates of users ask for.
//
//	k3s-render BASE [TEMPLATE] < DATA (JSON)
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"text/template"
)

type runtimeConfig struct {
	RuntimeType string
	BinaryName  string
}

type containerdConfig struct {
	Program       string
	Folder        string
	SystemdCgroup bool
	ExtraRuntimes map[string]runtimeConfig
	NodeConfig    struct{ DefaultRuntime string }
}

func render() error {
	var config containerdConfig
	if err := json.NewDecoder(os.Stdin).Decode(&config); err != nil {
		return err
	}
	base, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	text := base
	if len(os.Args) > 2 {
		if text, err = os.ReadFile(os.Args[2]); err != nil {
			return err
		}
	}
	parsed, err := template.New("config").Parse(string(text))
	if err != nil {
		return err
	}
	if _, err := parsed.New("base").Parse(string(base)); err != nil {
		return err
	}
	return parsed.Execute(os.Stdout, config)
}

func main() {
	if err := render(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
