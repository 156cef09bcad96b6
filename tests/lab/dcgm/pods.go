// Copyright (c) gpuops.nvidia contributors
// SPDX-License-Identifier: GPL-3.0-or-later

package main

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

type podUse struct{ pod, namespace, container string }

// podUses asks the kubelet who holds which device. Keys are GPU UUIDs, or GPU UUID and instance for a MIG device.
func podUses(chosen options, migDevices map[string]string) (map[string]podUse, error) {
	connection, err := grpc.NewClient("unix://"+chosen.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	limited, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	listed, err := podresources.NewPodResourcesListerClient(connection).List(limited, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	uses := map[string]podUse{}
	for _, pod := range listed.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				if !published(devices.GetResourceName(), chosen.resources) {
					continue
				}
				for _, id := range devices.GetDeviceIds() {
					uses[holder(id, migDevices)] = podUse{pod.GetName(), pod.GetNamespace(), container.GetName()}
				}
			}
		}
	}
	return uses, nil
}

// published tells whether a resource is NVIDIA's; a renamed one must be named, or its pods stay unknown.
func published(resource string, named []string) bool {
	if resource == "nvidia.com/gpu" || strings.HasPrefix(resource, "nvidia.com/mig-") {
		return true
	}
	for _, each := range named {
		if strings.TrimSpace(each) == resource {
			return true
		}
	}
	return false
}

// holder turns the kubelet's device id into a key: replicas of a shared GPU are called UUID::N.
func holder(id string, migDevices map[string]string) string {
	uuid, _, _ := strings.Cut(id, "::")
	if instance, known := migDevices[uuid]; known {
		return instance
	}
	return uuid
}
