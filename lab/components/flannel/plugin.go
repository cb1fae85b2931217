package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/joho/godotenv"
)

// delegatedDir is where the plugin keeps what it gave another plugin, by container, to take it back with the same.
const delegatedDir = "/var/lib/cni/flannel"

// How long flanneld may take to write its range, and how often it is looked for.
const (
	subnetPatience = 10 * time.Second
	subnetPoll     = 50 * time.Millisecond
)

type object = map[string]any

// pluginConf is the plugin's part of a CNI configuration.
type pluginConf struct {
	Name          string `json:"name"`
	CNIVersion    string `json:"cniVersion"`
	SubnetFile    string `json:"subnetFile"`
	DataDir       string `json:"dataDir"`
	Delegate      object `json:"delegate"`
	IPAM          object `json:"ipam"`
	RuntimeConfig object `json:"runtimeConfig"`
}

func readConf(stdin []byte) (*pluginConf, error) {
	c := &pluginConf{SubnetFile: subnetFile, DataDir: delegatedDir}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

// runPlugin answers one call of the container runtime.
func runPlugin() {
	nothing := func(*skel.CmdArgs) error { return nil }
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: remove, Check: nothing}, version.All, "CNI plugin flannel, of a lab")
}

// add gives a container its network by way of the delegate.
func add(args *skel.CmdArgs) error {
	c, err := readConf(args.StdinData)
	if err != nil {
		return err
	}
	subnet, err := c.subnet()
	if err != nil {
		return err
	}
	delegate, err := c.delegate(subnet)
	if err != nil {
		return fmt.Errorf("%s: %w", c.SubnetFile, err)
	}
	data, err := json.Marshal(delegate)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.DataDir, args.ContainerID), data, 0o600); err != nil {
		return err
	}
	result, err := invoke.DelegateAdd(context.Background(), delegate["type"].(string), data, nil)
	if err != nil {
		return fmt.Errorf("plugin %s: %w", delegate["type"], err)
	}
	return types.PrintResult(result, c.CNIVersion)
}

// subnet is what flanneld has written. A node is Ready as soon as there is a CNI configuration, which is a moment before flanneld
// starts, and kubelet tries a pod that fails again only ten seconds later: so the plugin waits, unlike flannel's, which fails.
func (c *pluginConf) subnet() (map[string]string, error) {
	late := time.After(subnetPatience)
	tick := time.NewTicker(subnetPoll)
	defer tick.Stop()
	for {
		subnet, err := godotenv.Read(c.SubnetFile)
		if err == nil && subnet["FLANNEL_SUBNET"] != "" {
			return subnet, nil
		}
		select {
		case <-late:
			return nil, fmt.Errorf("flanneld has not written its range: %w", err)
		case <-tick.C:
		}
	}
}

// delegate is the configuration of the plugin that does the work: what is in the plugin's own, and what flanneld wrote.
func (c *pluginConf) delegate(subnet map[string]string) (object, error) {
	network, err := netip.ParsePrefix(subnet["FLANNEL_NETWORK"])
	if err != nil {
		return nil, err
	}
	own, err := netip.ParsePrefix(subnet["FLANNEL_SUBNET"])
	if err != nil {
		return nil, err
	}
	mtu, err := strconv.Atoi(subnet["FLANNEL_MTU"])
	if err != nil {
		return nil, err
	}
	d := object{"type": "bridge", "ipMasq": subnet["FLANNEL_IPMASQ"] != "true", "mtu": mtu}
	maps.Copy(d, c.Delegate)
	kind, ok := d["type"].(string)
	if !ok {
		return nil, errors.New("the delegate's type is no text")
	}
	if _, said := d["isGateway"]; kind == "bridge" && !said {
		d["isGateway"] = true
	}
	d["name"], d["cniVersion"] = c.Name, c.CNIVersion
	if c.RuntimeConfig != nil {
		d["runtimeConfig"] = c.RuntimeConfig
	}
	ipam := object{"type": "host-local"}
	maps.Copy(ipam, c.IPAM)
	ipam["ranges"] = [][]object{{{"subnet": own.Masked().String()}}}
	routes, _ := ipam["routes"].([]any)
	ipam["routes"] = append(routes, object{"dst": network.Masked().String()})
	d["ipam"] = ipam
	return d, nil
}

// remove takes back what add gave; it is no error if that was nothing.
func remove(args *skel.CmdArgs) error {
	c, err := readConf(args.StdinData)
	if err != nil {
		return err
	}
	path := filepath.Join(c.DataDir, args.ContainerID)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var delegate struct{ Type string }
	if err := json.Unmarshal(data, &delegate); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := invoke.DelegateDel(context.Background(), delegate.Type, data, nil); err != nil {
		return fmt.Errorf("plugin %s: %w", delegate.Type, err)
	}
	return os.Remove(path)
}
