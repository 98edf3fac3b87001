package v1

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// ReplicaCount is the number of nodes that the data of a volume has to be on: a number, or AllNodes, which is
// written as "All".
//
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:Type=""
// +kubebuilder:validation:Format=""
// +kubebuilder:validation:Pattern=`^All$`
type ReplicaCount int32

// AllNodes requests a replica on each node that matches nodeAffinity and tolerations.
const AllNodes ReplicaCount = -1

const allNodes = "All"

// String returns the count as it is written in a manifest.
func (c ReplicaCount) String() string {
	if c == AllNodes {
		return allNodes
	}
	return strconv.Itoa(int(c))
}

// MarshalJSON writes a number, or "All".
func (c ReplicaCount) MarshalJSON() ([]byte, error) {
	if c == AllNodes {
		return json.Marshal(allNodes)
	}
	return json.Marshal(int32(c))
}

// UnmarshalJSON reads a number, or "All".
func (c *ReplicaCount) UnmarshalJSON(text []byte) error {
	if string(text) == `"`+allNodes+`"` {
		*c = AllNodes
		return nil
	}
	var count int32
	if err := json.Unmarshal(text, &count); err != nil || count < 0 {
		return fmt.Errorf("replicas %s: has to be a number, or %q", text, allNodes)
	}
	*c = ReplicaCount(count)
	return nil
}
