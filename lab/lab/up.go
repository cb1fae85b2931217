package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options are how, not what, a lab is brought up.
type Options struct {
	// Progress gets what is being done, a line at a time. It may be nil.
	Progress func(format string, args ...any)
	// Line draws one line in place of the last while components are built, on terminals. It may be nil.
	Line func(line string)
	// KeepOnFailure leaves a lab that did not come up as it is, to be looked at.
	KeepOnFailure bool
}

func (o Options) say(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(format, args...)
	}
}

// upDeadline bounds the start of a lab whose components are built; a healthy one takes a fraction of it. Agents of Cilium compile meanwhile, which
// takes them half a minute, and two where much else is under way.
const (
	upDeadline       = 3 * time.Minute
	compilingTakesUp = 3 * time.Minute
	// joiningTakesUp is for each machine of kubeadm, which join one after the other.
	joiningTakesUp = time.Minute
)

func (t Topology) upDeadline() time.Duration {
	limit := upDeadline
	if t.runsCilium() {
		limit += compilingTakesUp
	}
	if t.byKubeadm() {
		limit += time.Duration(t.ControlPlanes+len(t.Nodes)) * joiningTakesUp
	}
	return limit
}

// Up brings a lab up and returns when its nodes are Ready and its DNS answers. What it cannot make it takes down
// again. It fails with an *InvalidError when t cannot be, a *MissingError when this machine lacks something, an
// *InUseError when the name is taken, and a *BusyError while another process changes the lab that has the fabric.
func Up(ctx context.Context, t Topology, o Options) (*Lab, error) {
	t = t.withDefaults()
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if err := Preflight(t); err != nil {
		return nil, err
	}
	l, leave, err := enter(t)
	if err != nil {
		return nil, err
	}
	defer leave()

	err = l.up(ctx, o)
	if err == nil && t.byClusterAPI() {
		leave() // so that machines can be made
		err = l.ClusterAPI().up(ctx, o)
	}
	if err == nil {
		return l, nil
	}
	if o.KeepOnFailure {
		return nil, fmt.Errorf("lab %s did not come up: %w\nhint: it is kept; logs are in %s/*/log", t.Name, err, l.dir())
	}
	// Not ctx: the usual reason to be here is that it has ended.
	downCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downDeadline)
	defer cancel()
	if downErr := errors.Join(endClusterAPI(downCtx, t.Name), destroy(downCtx, t.Name)); downErr != nil {
		err = fmt.Errorf("%w; and taking it down again: %w", err, downErr)
	}
	return nil, fmt.Errorf("lab %s did not come up: %w", t.Name, err)
}

// up is the order in which a cluster comes to be. Programs are all started at once and find one another by trying, as
// on real machines; what is waited for is what the next step needs.
func (l *Lab) up(ctx context.Context, o Options) error {
	images, err := l.images().build(ctx, o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.Topology.upDeadline())
	defer cancel()

	creds, err := newCredentials()
	if err != nil {
		return err
	}
	if creds.site, err = l.Addons().siteAuthority(creds.site); err != nil {
		return err
	}
	l.Images, l.SiteCA = l.images().keep(images), creds.site.Cert
	o.say("starting %d machines", len(l.Machines()))
	if err := l.machines().startMachines(ctx, creds); err != nil {
		return err
	}
	o.say("starting the control plane and %d nodes", len(l.with(Worker)))
	if err := l.machines().startPrograms(ctx); err != nil {
		return err
	}
	if l.Topology.byClusterAPI() {
		return nil
	}
	var g errgroup.Group
	if l.Topology.byKubeadm() { // which finds no image that is not there yet
		if err := l.Workers().loadOnAll(ctx, l.kubeadm().machines(), l.images().archives()); err != nil {
			return l.explain(err)
		}
		g.Go(func() error { return l.kubeadm().install(ctx, o) })
	} else {
		g.Go(func() error { return l.Workers().Load(ctx, l.images().archives()...) })
		g.Go(func() error { return l.Addons().configureCluster(ctx, o) })
	}
	if err := g.Wait(); err != nil {
		return l.explain(err)
	}
	if err := l.Addons().waitReady(ctx, o); err != nil {
		return l.explain(err)
	}
	return l.explain(l.Addons().equip(ctx, o, creds))
}

// save writes what Open needs to find this lab again.
func (l *Lab) save() error {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(l.dir("lab.json"), data, 0o600)
}
