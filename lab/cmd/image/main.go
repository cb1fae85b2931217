// The command image writes an image of replumb as an archive, for registries and nodes.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/replumb/replumb/lab/image"
)

func main() {
	ref := flag.String("ref", "", "reference of the image, with its tag")
	binary := flag.String("binary", "bin/replumb", "the static binary in it")
	out := flag.String("o", "build/replumb-image.tar", "where to write it")
	flag.Parse()
	if err := image.WriteTar(*out, []image.Image{{Ref: *ref, Binary: *binary, Name: "replumb"}}); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println(*out, *ref)
}
