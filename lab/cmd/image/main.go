// The command image writes an image of replumb for registries and nodes: as an archive, or for several processors as an OCI layout.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/replumb/replumb/lab/image"
)

func main() {
	ref := flag.String("ref", "", "reference of the image, with its tag")
	binaries := flag.String("binary", "bin/replumb", "the static binary in it; several as amd64=PATH,arm64=PATH")
	roots := flag.String("roots", "", "file with the certificates of the authorities that it trusts; none by default")
	out := flag.String("o", "build/replumb-image.tar", "where to write it: a file, or for several binaries a directory")
	flag.Parse()
	said, err := write(*ref, *binaries, *roots, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println(*out, said)
}

// write returns the reference of what was written, by its digest where that is known.
func write(ref, binaries, roots, out string) (string, error) {
	var images []image.Image
	for binary := range strings.SplitSeq(binaries, ",") {
		i := image.Image{Ref: ref, Binary: binary, Name: "replumb", User: image.NonRoot, Roots: roots}
		if arch, path, several := strings.Cut(binary, "="); several {
			i.Arch, i.Binary = arch, path
		}
		images = append(images, i)
	}
	if images[0].Arch == "" {
		return ref, image.WriteTar(out, images)
	}
	digest, err := image.WriteLayout(out, images)
	return ref + "@" + digest, err
}
