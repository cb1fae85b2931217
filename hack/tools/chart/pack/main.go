// Pack packages the chart for a release, as helm package does: the image is that of its version.
//
//	go -C hack/tools run ./chart/pack -version 0.1.0 -digest sha256:… -o ../../build/release
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
)

func main() {
	dir := flag.String("chart", "../../charts/replumb", "the chart")
	version := flag.String("version", "", "version of the release, as 0.1.0 or v0.1.0")
	digest := flag.String("digest", "", "digest of the image; empty if it is not known")
	out := flag.String("o", "../../build/release", "folder for the package")
	flag.Parse()
	file, err := pack(*dir, *version, *digest, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println(file)
}

// pack returns the file that it wrote.
func pack(dir, version, digest, out string) (string, error) {
	number := strings.TrimPrefix(version, "v")
	c, err := loader.Load(dir)
	if err != nil {
		return "", err
	}
	c.Metadata.Version, c.Metadata.AppVersion = number, "v"+number
	if err := pin(c, digest); err != nil {
		return "", err
	}
	if err := c.Validate(); err != nil {
		return "", fmt.Errorf("version %q: %w", version, err)
	}
	if err := os.MkdirAll(out, 0o750); err != nil {
		return "", err
	}
	return chartutil.Save(c, out)
}

// pin writes the digest of the image into the values, in the file and as they were read.
func pin(c *chart.Chart, digest string) error {
	if digest == "" {
		return nil
	}
	const empty = "\n  digest: \"\"\n"
	for _, f := range c.Raw {
		if f.Name != chartutil.ValuesfileName {
			continue
		}
		if strings.Count(string(f.Data), empty) != 1 {
			return fmt.Errorf("%s does not have image.digest once", f.Name)
		}
		f.Data = []byte(strings.Replace(string(f.Data), empty, "\n  digest: "+digest+"\n", 1))
		values, err := chartutil.ReadValues(f.Data)
		if err != nil {
			return err
		}
		c.Values = values
		return nil
	}
	return fmt.Errorf("the chart has no %s", chartutil.ValuesfileName)
}
