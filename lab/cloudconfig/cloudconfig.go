// Package cloudconfig reads what Cluster API's bootstrap provider for kubeadm has machines do when they start: as much of cloud-init's
// configuration as it writes by itself, and nothing else without saying so.
package cloudconfig

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// header is the line by which cloud-init knows its configuration. Above it the provider says that it is a template.
const header = "#cloud-config\n"

// Config is what a machine does once, when it starts: it writes files, and then runs commands, one after the other.
type Config struct {
	Files    []File   `json:"write_files"`
	Commands []string `json:"runcmd"`
}

// File is one to be written. All are root's.
type File struct {
	Path        string `json:"path"`
	Owner       string `json:"owner,omitempty"`
	Permissions string `json:"permissions,omitempty"`
	Content     string `json:"content"`
}

// Parse fails for whatever a machine of a lab would not do, and for a template that asks for what only clouds know.
func Parse(data []byte) (*Config, error) {
	if !bytes.Contains(data, []byte(header)) {
		return nil, errors.New("it is no cloud-config: the kubeadm bootstrap provider writes one with format: cloud-config")
	}
	var c Config
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, fmt.Errorf("of a cloud-config machines of labs know write_files and runcmd: %w", err)
	}
	for _, f := range c.Files {
		if f.Owner != "" && f.Owner != "root:root" {
			return nil, fmt.Errorf("file %s is to be of %s, and machines of labs have root alone", f.Path, f.Owner)
		}
		if strings.Contains(f.Content, "{{") {
			return nil, fmt.Errorf("file %s is a template, and machines of labs fill in none", f.Path)
		}
	}
	return &c, nil
}

// Script is what cloud-init makes of the commands: one that fails does not keep the next ones from running.
func (c *Config) Script() []byte {
	script := bytes.NewBufferString("#!/bin/sh\n")
	for _, f := range c.Files {
		if f.Permissions != "" {
			fmt.Fprintf(script, "chmod %s '%s'\n", f.Permissions, f.Path)
		}
	}
	for _, command := range c.Commands {
		fmt.Fprintln(script, command)
	}
	return script.Bytes()
}
