// Package conformance runs Kubernetes' own tests of the network against a lab, and compares what passes in several states of it.
package conformance

import (
	"context"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/replumb/replumb/lab/image"
)

// Built are the folders of the lab's components that tests and their images are made of.
type Built struct {
	E2E     string // Kubernetes' tests
	CoreDNS string
	Pause   string // path of a program that does nothing
}

// searched is where the images of Debian's programs have them; applets of BusyBox are in bin and come last.
const searched = "/usr/bin:/bin:/"

// WriteImages writes an archive of the images that tests ask for, under the very names they ask for: nodes of a lab pull nothing. They are
// what upstream's are as far as these tests can tell: what upstream builds from its sources is built from them, and what it takes from
// a distribution is Debian's instead of Alpine's.
func WriteImages(path string, b Built) error {
	shell, err := busyBox()
	if err != nil {
		return err
	}
	tools, err := debian(map[string]string{
		"bash": "bash", "curl": "curl", "dig": "dig", "getent": "getent", "ip": "ip", "nc": "nc.openbsd", "sh": "dash", "ss": "ss",
		"wget": "wget",
	})
	if err != nil {
		return err
	}
	tracking, err := debian(map[string]string{"conntrack": "conntrack"})
	if err != nil {
		return err
	}
	agnhost := image.Image{
		Binary: filepath.Join(b.E2E, "agnhost"), Name: "agnhost", Links: []string{"agnhost-2"}, Args: []string{"pause"}, Path: searched,
		MoreLinks: merged(shell.links, map[string]string{"bin/sh": "usr/bin/sh"}), // BusyBox' own would take its own nc, which is another
		More: merged(shell.files, tools, map[string]string{
			"coredns":       filepath.Join(b.CoreDNS, "coredns"),
			"localhost.crt": filepath.Join(b.E2E, "crd", "localhost.crt"),
			"localhost.key": filepath.Join(b.E2E, "crd", "localhost.key"),
		}),
	}
	const of = "registry.k8s.io/e2e-test-images/"
	return image.WriteTar(path, []image.Image{
		called(agnhost, of+"agnhost:2.63.0"),
		called(agnhost, of+"glibc-dns-testing:2.0.0"), // for its dig and getent, of which both are Debian's here
		{
			Ref:    of + "nginx:1.15-4", // tests want it to run, and call it on no port that it listens at
			Binary: agnhost.Binary, Name: "agnhost", Args: []string{"test-webserver"},
		},
		{
			Ref: of + "regression-issue-74839:1.4", Binary: filepath.Join(b.E2E, "regression-issue-74839"), Name: "regression-issue-74839",
		},
		{
			Ref:    of + "busybox:1.37.0-1", // whose own nc, being static, cannot look names up
			Binary: shell.binary, Name: "bin/busybox", MoreLinks: agnhost.MoreLinks, More: tools, Path: searched,
		},
		{
			Ref:    "registry.k8s.io/build-image/distroless-iptables:v0.9.6", // for its conntrack
			Binary: shell.binary, Name: "bin/busybox", MoreLinks: shell.links, More: tracking, Path: searched,
		},
		{Ref: "registry.k8s.io/pause:3.10.2", Binary: b.Pause, Name: "pause"},
	})
}

func called(i image.Image, ref string) image.Image {
	i.Ref = ref
	return i
}

func merged(all ...map[string]string) map[string]string {
	into := map[string]string{}
	for _, m := range all {
		maps.Copy(into, m)
	}
	return into
}

// box is a BusyBox with its applets.
type box struct {
	binary       string
	files, links map[string]string
}

// busyBox is Debian's, which is static.
func busyBox() (box, error) {
	files, err := debian(map[string]string{"busybox": "busybox"})
	if err != nil {
		return box{}, err
	}
	binary := files["usr/bin/busybox"]
	out, err := exec.CommandContext(context.Background(), binary, "--list").Output()
	if err != nil {
		return box{}, err
	}
	links := map[string]string{}
	for applet := range strings.FieldsSeq(string(out)) {
		if applet != "busybox" {
			links["bin/"+applet] = "bin/busybox"
		}
	}
	delete(files, "usr/bin/busybox")
	files["bin/busybox"] = binary
	return box{binary: binary, files: files, links: links}, nil
}
