package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// objectsOptions are the options of commands that print a PersistentVolume and its claim.
type objectsOptions struct {
	node         string
	hostname     string
	claim        string
	storageClass string
	policy       reclaimPolicy
	door         string
	parsedDoor   pv.Door // set by checkObjects
}

func (o *objectsOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "name of this node in the cluster (default: its hostname)")
	f.StringVar(&o.hostname, "hostname", "", "the node's label kubernetes.io/hostname (default: --node)")
	f.StringVar(&o.claim, "claim", "", "name of the claim (default: NAME)")
	f.StringVar(&o.storageClass, "storage-class", "", "StorageClass of the claim (default: none)")
	f.Var(&o.policy, "reclaim-policy", "reclaim policy of the new PersistentVolume")
	f.StringVar(&o.door, "door", string(pv.Flex), "driver of the PersistentVolume: flex, or csi if the CSI driver runs on this node")
	_ = cmd.RegisterFlagCompletionFunc("reclaim-policy", cobra.FixedCompletions([]string{string(policyRetain), string(policyDelete)}, cobra.ShellCompDirectiveNoFileComp))
}

// defaultNode sets the node to this host's name, unless --node is given.
func (o *objectsOptions) defaultNode() error {
	if o.node != "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the hostname: %w; set --node", err)
	}
	o.node = strings.ToLower(host) // as kubelet does
	return nil
}

// checkObjects validates the flags before anything is looked up.
func (o *objectsOptions) checkObjects() (err error) {
	if o.hostname == "" {
		o.hostname = o.node
	}
	if _, err := pv.ParseObjectName("--node", o.node); err != nil {
		return err
	}
	if _, err := pv.ParseLabelValue("--hostname", o.hostname); err != nil {
		return err
	}
	if o.door != "" {
		if o.parsedDoor, err = pv.ParseDoor("--door", o.door); err != nil {
			return err
		}
	}
	for flag, name := range map[string]string{"--claim": o.claim, "--storage-class": o.storageClass} {
		if name == "" {
			continue
		}
		if _, err := pv.ParseObjectName(flag, name); err != nil {
			return err
		}
	}
	return nil
}

// A reclaimPolicy is a persistentVolumeReclaimPolicy.
type reclaimPolicy string

const (
	policyRetain reclaimPolicy = "Retain"
	policyDelete reclaimPolicy = "Delete"
)

// String implements pflag.Value.
func (p *reclaimPolicy) String() string { return string(*p) }

// Set implements pflag.Value.
func (p *reclaimPolicy) Set(s string) error {
	switch v := reclaimPolicy(s); v {
	case policyRetain, policyDelete:
		*p = v
		return nil
	}
	return fmt.Errorf("give %s or %s", policyRetain, policyDelete)
}

// Type implements pflag.Value; the help text shows it.
func (p *reclaimPolicy) Type() string { return "Retain|Delete" }
