package migrate

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/mirror"
)

type dirFlags struct {
	dir     string
	secrets bool
}

func (f *dirFlags) declare(cmd *cobra.Command) {
	cmd.Flags().
		StringVar(&f.dir, "to-dir", "", "of a mirror: write what would be copied to this empty directory, as manifests, and nothing else")
	cmd.Flags().BoolVar(&f.secrets, "with-secrets", false, "with --to-dir: write Secrets too, in files that only you can read")
}

func (f *dirFlags) fit(g *given) error {
	_, copies := g.job.(*mirror.Job)
	switch {
	case f.dir != "" && !copies:
		return &command.UsageError{Problem: "--to-dir is for spec.mirror", Hint: "leave it out: plan -o yaml prints every object and patch"}
	case f.secrets && f.dir == "":
		return &command.UsageError{Problem: "--with-secrets is for --to-dir", Hint: "add --to-dir DIR"}
	}
	return nil
}

func (o *planOptions) writeDir(ctx context.Context, j migrations.Job) error {
	w, err := j.(*mirror.Job).WriteDir(ctx, o.to.dir, o.to.secrets)
	if err != nil {
		return ofJob(j, err)
	}
	if w.Secrets > 0 {
		o.Hint("%s left out; --with-secrets writes them too", english.Plural(w.Secrets, "Secret was", "Secrets were"))
	}
	return o.Done(o.format,
		fmt.Sprintf("%s written to %s; kubectl apply -k %s applies them in order", english.Plural(w.Files, "manifest", ""), o.to.dir, o.to.dir),
	)
}
