package installerconfig

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const kopsGroup = "kops.k8s.io/"

// KOps is a file for kops create -f, from what kops get -o yaml prints: a Cluster, and its
// InstanceGroups (docs/cluster_spec.md and docs/instance_groups.md in k8s.io/kops).
func KOps(body []byte, w Overrides) ([]byte, error) {
	if err := w.Validate(); err != nil {
		return nil, err
	}
	all, err := documents(body)
	if err != nil {
		return nil, err
	}
	cluster, groups, err := kopsParts(all)
	if err != nil {
		return nil, err
	}
	was := text(cluster, "metadata", "name")
	switch {
	case cluster == nil || get(cluster, "spec") == nil || was == "":
		return nil, bad(kopsHint, "it has no Cluster with a name and a spec")
	case was == w.Name:
		return nil, bad("choose another one", "%s is the name of the source", w.Name)
	}
	k := kops{Overrides: w, was: was}
	if err := k.cluster(cluster); err != nil {
		return nil, err
	}
	for _, n := range all {
		if n != cluster {
			k.group(n)
		}
	}
	top := fmt.Sprintf(`For kops create -f, as the mirror of %s. Nothing has been made yet.
Look for %s and %s in it. kOps makes the keys, secrets and etcd of the mirror itself: take none from the source's store.
When that is done: kops create secret sshpublickey admin -i KEY.pub --name %[4]s, if machines are reached by SSH, and
kops update cluster --name %[4]s --yes`, was, strings.TrimSuffix(fillIn, " "), strings.TrimSuffix(check, " "), w.Name)
	if groups == 0 {
		top += "\n" + fillIn + "InstanceGroups: the file that was read has none."
	}
	return write(top, all)
}

const kopsHint = "kops get --name NAME -o yaml prints it: the Cluster, and its InstanceGroups"

// kopsParts are the Cluster among documents, nil if there is none, and the number of
// InstanceGroups.
func kopsParts(all []*yaml.Node) (cluster *yaml.Node, groups int, err error) {
	for _, n := range all {
		if !strings.HasPrefix(text(n, "apiVersion"), kopsGroup) {
			return nil, 0, bad(kopsHint, "line %d: %s %q is none of kOps", n.Line, text(n, "kind"), text(n, "apiVersion"))
		}
		if aliased(n) {
			return nil, 0, bad("write them out", "it has anchors or aliases")
		}
		plain(n)
		switch text(n, "kind") {
		case "Cluster":
			if cluster != nil {
				return nil, 0, bad("name one with kops get --name NAME -o yaml", "it has more than one Cluster")
			}
			cluster = n
		case "InstanceGroup":
			groups++
		default:
			return nil, 0, bad(kopsHint, "line %d: replumb knows no %s of kOps", n.Line, text(n, "kind"))
		}
	}
	return cluster, groups, nil
}

type kops struct {
	Overrides

	was string
}

// rangeField is where a Cluster has a range, by the version of its API: v1alpha2 has ranges in the
// spec, v1alpha3 under networking.
func rangeField(spec *yaml.Node, key, later string) (in *yaml.Node, name string) {
	if networking := get(spec, "networking"); networking != nil && index(networking, later) >= 0 {
		return networking, later
	}
	return spec, key
}

func (k *kops) cluster(c *yaml.Node) error {
	spec := get(c, "spec")
	meta := mapping()
	set(meta, "name", scalar(k.Name))
	set(c, "metadata", meta)
	pick(c, []string{"apiVersion", "kind", "metadata", "spec"})
	if err := k.ranges(spec); err != nil {
		return err
	}
	for _, key := range []string{
		"configBase", "configStore", "keyStore", "secretStore", "fileAssets", "gossipConfig", "dnsControllerGossipConfig", "sshKeyName",
	} {
		k.own(spec, key)
	}
	k.members(spec)
	k.walk(spec, "")
	return nil
}

// own takes out what is the source's alone, and says what to write in its place.
func (k *kops) own(spec *yaml.Node, key string) {
	switch key {
	case "configBase", "configStore":
		drop(spec, key, "kOps makes it of the state store (KOPS_STATE_STORE) and the name")
	case "keyStore", "secretStore":
		drop(spec, key, "it is where the source's keys and secrets are")
	case "fileAssets":
		if n := get(spec, key); n != nil {
			drop(spec, key, fillIn+"files of the source, which may hold secrets: %s", names(n))
		}
	case "gossipConfig", "dnsControllerGossipConfig":
		drop(spec, key, "it may hold the secret of the source's members")
	case "sshKeyName":
		drop(spec, key, fillIn+"the key pair that machines of the mirror are reached by")
	}
}

func (k *kops) ranges(spec *yaml.Node) error {
	services, serviceKey := rangeField(spec, "serviceClusterIPRange", "serviceClusterIPRange")
	pods, podKey := rangeField(spec, "podCIDR", "podCIDR")
	nodes, nodeKey := rangeField(spec, "networkCIDR", "networkCIDR")
	masquerade, masqueradeKey := rangeField(spec, "nonMasqueradeCIDR", "nonMasqueradeCIDR")
	w := k.Overrides
	w.Nodes = kept(w.Nodes, text(nodes, nodeKey))
	if err := clash(w, text(services, serviceKey), text(pods, podKey)); err != nil {
		return err
	}
	put := func(in *yaml.Node, key string, want []netip.Prefix) {
		if len(want) > 0 {
			set(in, key, scalar(joined(want)))
		} else {
			remark(in, key, check+"as the source has it; where a route leads from one cluster to the other it needs another")
		}
	}
	put(services, serviceKey, k.Services)
	put(pods, podKey, k.Pods)
	k.masquerade(masquerade, masqueradeKey)
	old := kept(nil, text(nodes, nodeKey))
	put(nodes, nodeKey, k.Nodes)
	id, idKey := rangeField(spec, "networkID", "networkID")
	drop(id, idKey, "without it kOps makes a network; to have the mirror in the one of the source, name that")
	for _, in := range []*yaml.Node{get(spec, "subnets"), get(spec, "networking", "subnets")} {
		k.subnets(in, old)
	}
	return nil
}

// masquerade widens nonMasqueradeCIDR where it is too narrow for the mirror's ranges.
func (k *kops) masquerade(in *yaml.Node, key string) {
	has, err := netip.ParsePrefix(text(in, key))
	if err != nil {
		return
	}
	for _, want := range slices.Concat(k.Services, k.Pods) {
		if !has.Contains(want.Addr()) || has.Bits() > want.Bits() {
			set(in, key, scalar(""))
			remark(in, key, fillIn+"one range that has those of Services and pods; the source's, %s, does not have %s", has, want)
			return
		}
	}
}

// subnets keep their place in the new network, where that has room.
func (k *kops) subnets(in *yaml.Node, old []netip.Prefix) {
	if in == nil {
		return
	}
	for _, n := range in.Content {
		if n.Kind != yaml.MappingNode {
			continue
		}
		drop(n, "id", "without it kOps makes a subnet")
		drop(n, "egress", fillIn+"how private machines of the mirror get out, if not by a gateway that kOps makes")
		drop(n, "publicIP", "it is an address of the source")
		has, err := netip.ParsePrefix(text(n, "cidr"))
		if err != nil || len(k.Nodes) == 0 {
			remark(n, "cidr", check+"as the source has it; in a network with other subnets it needs another")
			continue
		}
		moved, ok := place(has, old, k.Nodes[0])
		if !ok {
			set(n, "cidr", scalar(""))
			remark(n, "cidr", fillIn+"a range in %s; the source has %s", k.Nodes[0], has)
			continue
		}
		set(n, "cidr", scalar(moved.String()))
	}
}

func place(r netip.Prefix, of []netip.Prefix, in netip.Prefix) (moved netip.Prefix, ok bool) {
	i := slices.IndexFunc(of, func(p netip.Prefix) bool {
		return p.Contains(r.Addr()) && p.Bits() <= r.Bits() && p.Bits() >= in.Bits()
	})
	if i < 0 || !r.Addr().Is4() || !in.Addr().Is4() {
		return moved, false
	}
	from, to, a := of[i].Masked().Addr().As4(), in.Masked().Addr().As4(), r.Masked().Addr().As4()
	for b := range a {
		a[b] = a[b] - from[b] + to[b]
	}
	moved = netip.PrefixFrom(netip.AddrFrom4(a), r.Bits())
	return moved, moved.Masked() == moved && in.Contains(moved.Addr())
}

func (k *kops) members(spec *yaml.Node) {
	clusters := get(spec, "etcdClusters")
	if clusters == nil {
		return
	}
	for _, c := range clusters.Content {
		if c.Kind != yaml.MappingNode {
			continue
		}
		drop(c, "backups", "kOps makes it of the state store and the name; the source's backups stay the source's")
		if members := get(c, "etcdMembers"); members != nil {
			for _, m := range members.Content {
				drop(m, "kmsKeyID", fillIn+"a key of the mirror, if its disks are to be encrypted by one")
				drop(m, "kmsKeyId", fillIn+"a key of the mirror, if its disks are to be encrypted by one")
			}
		}
	}
}

func (k *kops) group(n *yaml.Node) {
	meta := mapping()
	labels := mapping()
	set(labels, "kops.k8s.io/cluster", scalar(k.Name))
	set(meta, "labels", labels)
	set(meta, "name", scalar(text(n, "metadata", "name")))
	set(n, "metadata", meta)
	pick(n, []string{"apiVersion", "kind", "metadata", "spec"})
	spec := get(n, "spec")
	if spec == nil || spec.Kind != yaml.MappingNode {
		return
	}
	drop(spec, "additionalUserData", fillIn+"what the source's machines run when they start, which may hold secrets")
	drop(spec, "externalLoadBalancers", fillIn+"load balancers of the mirror")
	drop(spec, "fileAssets", fillIn+"files of the source, which may hold secrets")
	k.walk(spec, "")
}

var (
	// ofCloud are what a cloud calls things of one cluster.
	ofCloud = regexp.MustCompile(`^(vpc|subnet|sg|nat|igw|eipalloc|eni|vol|rtb|tgw|pcx|lt|acl|snap)-[0-9a-f]{8,}$`)
	arn     = regexp.MustCompile(`^arn:[a-z-]+:`)
)

// walk marks names that say secret, names of the source, and cloud resources of the source.
func (k *kops) walk(n *yaml.Node, in string) {
	switch n.Kind {
	case yaml.MappingNode:
		k.walkFields(n, in)
	case yaml.SequenceNode:
		k.walkItems(n, in)
	}
}

func (k *kops) walkFields(n *yaml.Node, in string) {
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i].Value, n.Content[i+1]
		why := k.out(in, key, value)
		switch {
		case isNote(n, i):
		case why != "":
			drop(n, key, "%s", why)
		case strings.Contains(key, k.was):
			drop(n, key, "it bears the source's name")
		case value.Kind == yaml.ScalarNode:
			k.rename(n, key)
			if why, _ := flag(dashed(key), value.Value); flagsOf(in) && why != "" {
				remark(n, key, "%s", why)
			}
		default:
			k.walk(value, key)
		}
	}
}

func (k *kops) walkItems(n *yaml.Node, in string) {
	for i, item := range n.Content {
		switch {
		case isNote(n, i):
		case item.Kind != yaml.ScalarNode:
			k.walk(item, in)
		case cloudsOwn(item):
			dropItem(n, i, in, fillIn+"one of the mirror; the source has "+item.Value)
		case strings.Contains(item.Value, k.was):
			item.SetString(strings.ReplaceAll(item.Value, k.was, k.Name))
			item.LineComment = "# " + check + "it had the source's name"
		}
	}
}

// cloudsOwn reports whether a value is what a cloud calls one of its things.
func cloudsOwn(value *yaml.Node) bool {
	return value.Kind == yaml.ScalarNode && (ofCloud.MatchString(value.Value) || arn.MatchString(value.Value))
}

// flagsOf reports whether the fields of a part of a Cluster are flags of a component.
func flagsOf(in string) bool {
	return slices.Contains(
		[]string{"kubeAPIServer", "kubeControllerManager", "kubeScheduler", "kubelet", "masterKubelet", "controlPlaneKubelet"},
		in,
	)
}

func (k *kops) out(in, key string, value *yaml.Node) string {
	holds := value.Kind != yaml.ScalarNode || value.Tag != "!!bool" // whether something is encrypted is no secret
	switch {
	case flagsOf(in):
		why, out := flag(dashed(key), value.Value)
		if out && value.Tag != "!!bool" {
			return strings.Replace(why, "kubeadm sets", "kOps sets", 1)
		}
	case strings.EqualFold(key, "sslCertificate"), strings.EqualFold(key, "kmsKeyID"), strings.EqualFold(key, "kmsKeyArn"):
		return fillIn + "one of the mirror"
	case key == "discoveryStore":
		return fillIn + "a store of the mirror's own: who trusts the source by it would trust the mirror for the source"
	}
	switch {
	case secretive(key) && holds:
		return fillIn + "it may hold a secret of the source, or lead to one"
	case cloudsOwn(value):
		return fillIn + "one of the mirror; the source has " + value.Value
	case value.Kind == yaml.ScalarNode && strings.Contains(value.Value, "://") && strings.Contains(value.Value, "@"):
		return fillIn + "it may hold a password"
	}
	return ""
}

func (k *kops) rename(m *yaml.Node, key string) {
	n := get(m, key)
	renamed := strings.ReplaceAll(n.Value, k.was, k.Name)
	if renamed == n.Value {
		return
	}
	n.SetString(renamed)
	remark(m, key, check+"it had the source's name")
}

// dashed is a field of kOps as the flag that it becomes, such as service-account-issuer.
func dashed(field string) string {
	var out strings.Builder
	for i, r := range field {
		if r >= 'A' && r <= 'Z' && i > 0 && field[i-1] >= 'a' && field[i-1] <= 'z' {
			out.WriteByte('-')
		}
		out.WriteString(strings.ToLower(string(r)))
	}
	return out.String()
}
