"""List what clients of Zuul's API expect, from facts about Zuul (never from our own answers)."""

from __future__ import annotations

from .notation import Shape, shape

_TEXTS = {
    "INFO": "{info {capabilities {job_history b, auth {realms o, default_realm s?, read_protected b, "
    "auth_log_file_requests b}}, websocket_url s?, stats {prefix s?, type s, url s?}, tenant s~}}",
    "STATUS": "{zuul_version s, state {trigger_queue_discarding b, trigger_queue_paused b, result_queue_paused b, "
    "reason s?, info s?}, trigger_event_queue {length i}, management_event_queue {length i}, "
    "connection_event_queues o, last_reconfigured i, pipelines [PIPELINE]}",
    "PIPELINE": "{name s, description s?, state s, manager s, triggers [{driver s}], trigger_events i, "
    "result_events i, management_events i, change_queues [{name s, branch s?, window i, heads [[ITEM]]}]}",
    "ITEM": "{id s, active b, live b, refs [{id s, ref s?, url s?, project s, project_canonical s, owner s?}], "
    "zuul_ref s, item_ahead s?, items_behind [s], failing_reasons [s], enqueue_time i, remaining_time i?, jobs [JOB]}",
    "JOB": "{name s, dependencies [s], voting b, result s?, uuid s?, url s?, report_url s?, pipeline s?, tries i, "
    "queued b, waiting_status s?, elapsed_time i?, remaining_time i?, estimated_time n?, execute_time n?, "
    "start_time n?, end_time n?, canceled b?, paused b?, pre_fail b?, retry b?, snapshotting b?}",
    "REF": "{project s, branch s?, change a, patchset s?, ref s, oldrev s?, newrev s?, ref_url s?}",
    "BUILD": "{_id i, uuid s, job_name s, result s?, held b?, execute_time s?, start_time s?, end_time s?, "
    "duration n?, voting b, log_url s?, nodeset s?, error_detail s?, final b?, artifacts [{name s, url s, "
    "metadata o~}], provides [{name s}], ref REF}",
    "TOPBUILD": "{_id i, uuid s, job_name s, result s?, held b?, execute_time s?, start_time s?, end_time s?, "
    "duration n?, voting b, log_url s?, nodeset s?, error_detail s?, final b?, artifacts [{name s, url s, "
    "metadata o~}], provides [{name s}], ref REF, pipeline s, event_id s, event_timestamp s?, "
    "queue_item_uuid s?, buildset {uuid s, refs [REF]~}}",
    "BUILDSET": "{_id i, uuid s, result s?, message s?, pipeline s, event_id s?, event_timestamp s?, "
    "queue_item_uuid s?, first_build_start_time s?, last_build_end_time s?, user_id s?, parameters o?, refs [REF], "
    "builds [BUILD]~, events [{event_time s, event_type s, description s}]~}",
    "TIME": "{_id i, uuid s, job_name s, result s, start_time s?, end_time s?, duration n?, final b?, project s, "
    "branch s?, pipeline s, ref s}",
    "SOURCE": "{project s, branch s, path s?}",
    "ROLE": "{target_name s, type s, project_canonical_name s, implicit b}",
    "BOOK": "{path s, roles [ROLE], secrets [{name s, alias s}], semaphores [{name s}], cleanup b, "
    "preserve_home_paths [s], source_context SOURCE?~}",
    "NODESET": "{name s, nodes [{name s, aliases [s], label s, state s}], groups [{name s, nodes [s]}], "
    "alternatives [a]}",
    "FILE": "{regex s, negate b}",
    "VARIANT": "{name s, parent s?, branches [s]?, description s?, variant_description s, source_context SOURCE?, "
    "files [FILE], irrelevant_files [FILE], override_checkout s?, required_projects [{project_name s, "
    "override_branch s?, override_checkout s?}], include_projects [{type s, name s~}]?, exclude_projects "
    "[{type s, name s~}]?, semaphores [{name s, resources_first b}], variables o, extra_variables o, "
    "host_variables o, group_variables o, include_vars [{name s, project_name s?, required b, use_ref b}], final b, "
    "abstract b, intermediate b, voting b, protected b?, post_review b?, pre_timeout i?, timeout i?, post_timeout i?, "
    "attempts i, tags [s], provides [s], requires [s], dependencies [{name s, soft b}], roles [ROLE], run [BOOK], "
    "pre_run [BOOK], post_run [BOOK], cleanup_run [BOOK], match_on_config_updates b, deduplicate a, "
    "failure_output [s], image_build_name s?, type s, secret_exposure s, ansible_version s?, "
    "ansible_split_streams b?, workspace_scheme s, workspace_checkout a, nodeset NODESET~, "
    "nodeset_alternatives [NODESET]~}",
    "PARAM": "{name s, type s, description s?, values [a]?, default a, required b}",
    "PROJECT": "{name s, connection_name s, canonical_name s, configs [{source_context SOURCE, default_branch s?, "
    "merge_mode s?, is_template b, templates [s], queue_name s?, pipelines [{name s, parameters [PARAM], "
    "jobs [[VARIANT]]}]}], metadata o}",
    "FROZENBOOK": "{connection s, project s, branch s, path s, trusted b, roles [a], secrets o, semaphores [a], "
    "cleanup b, nesting_level i, preserve_home_paths [s]}",
    "FROZEN": "{job s, branch s, items [a], projects [a], repo_state_keys [a], ssh_keys [a], "
    "pipeline_builds_images b, zuul {project {name s, short_name s, canonical_hostname s, canonical_name s, "
    "src_dir s}, branch s, build s, buildset s?, ref s?, change_url s?~, buildset_refs [a], build_refs [a], "
    "pipeline s, post_review b, job s, tenant s, event_id s?, jobtags [s], include_vars [a], projects o, items [a], "
    "child_jobs [s], voting b, timeouts o, image_build_name s?~, deduplicate a, _inheritance_path [s]}, "
    "pre_timeout i?, timeout i?, post_timeout i?, override_branch s?, override_checkout s?, ansible_version s, "
    "ansible_split_streams b?, workspace_scheme s, workspace_checkout a, playbooks [FROZENBOOK]~, "
    "pre_playbooks [FROZENBOOK]~, post_playbooks [FROZENBOOK]~, cleanup_playbooks [FROZENBOOK]~, nodeset NODESET, "
    "vars o, extra_vars o, host_vars o, group_vars o, secret_vars o?, failure_output [s]}",
    "ART": "{uuid s, canonical_name s, build_tenant b, build_uuid s, format s, md5sum s?, sha256 s?, url s, "
    "timestamp s, validated b, state s, state_time s, is_locked b, lock_holder s?, uploads [UPLOAD]~}",
    "UPLOAD": "{uuid s, canonical_name s, artifact_uuid s, endpoint_name s, external_id s?, timestamp s, validated b, "
    "build_uuid s, state s, state_time s, is_locked b, lock_holder s?, why s?~}",
    "NODE": "{id s, uuid s, type [s], label s, state s, state_time s, next_state s?, comment s?, "
    "connection_type s?, external_id a, provider s?, cloud s?, region s?, az s?, username s?, interface_ip s?, "
    "public_ipv4 s?, private_ipv4 s?, public_ipv6 s?, private_ipv6 s?, slot i?, quota o, max_age i?, "
    "max_ready_age i?, hold_expiration i?, is_locked b, lock_holder s?, request_id s?, request_time s?, "
    "main_node_id s?}",
    "REQUEST": "{uuid s, state s, pipeline_name s, buildset_uuid s, job_name s, labels [s], priority i, "
    "relative_priority i, request_time s, zuul_event_id s, image_names [s], image_upload_uuid s?, "
    "provider_node_data [{uuid s?, executor_zone s?, failed_providers [s]}], is_locked b, lock_holder s?}",
    "HOLD": "{id s, tenant s, project s, job s, ref_filter s, max_count i, current_count i, reason s?, "
    "node_expiration i?, expired n?, nodes [{build s, nodes [s]}]}",
    "COMPONENT": "{hostname s, state s, version s}",
}
NAMED: dict[str, Shape] = {name: shape(text) for name, text in _TEXTS.items()}

READS: dict[str, str] = {
    "/api": "o",
    "/api/info": "INFO",
    "/api/tenants": "[{name s}]",
    "/api/connections": "[{name s, driver s}]",
    "/api/components": "{scheduler [COMPONENT], executor [COMPONENT], merger [COMPONENT], web [COMPONENT]}",
    "T/info": "INFO",
    "T/status": "STATUS",
    "T/status/change/{change}": "[ITEM]",
    "T/tenant-status": "{config_error_count i}",
    "T/semaphores": "[{name s, global b, max i, holders {count i, this_tenant [{buildset_uuid s, job_name s}], "
    "other_tenants i}}]",
    "T/jobs": "[{name s, description s~, tags [s]~, variants [{parent s~, branches [s]~}]~}]",
    "T/job/unit": "[VARIANT]",
    "T/job/base": "[VARIANT]",
    "T/projects": "[{name s, connection_name s, canonical_name s, type s}]",
    "T/project/code/api": "PROJECT",
    "T/project/git.example/code/api": "PROJECT",
    "T/project/config": "PROJECT",
    "T/pipelines": "[{name s, triggers [{name s, driver s}]}]",
    "T/pipeline/gate/project/code/api/branch/master/freeze-jobs": "[{name s, dependencies [{name s, soft b}]}]",
    "T/pipeline/gate/project/code/api/branch/master/freeze-job/unit": "FROZEN",
    "T/config-errors": "[{source_context SOURCE, error s, short_error s, severity s, name s}]",
    "T/builds": "[TOPBUILD]",
    "T/build/{build}": "TOPBUILD",
    "T/buildsets": "[BUILDSET]",
    "T/buildset/{buildset}": "BUILDSET",
    "T/build-times": "[TIME]",
    "T/system-events": "[{event_id s, event_time s, event_type s, description s}]",
    "T/labels": "[{name s, canonical_name s~, description s?~}]",
    "T/flavors": "[{name s, canonical_name s, description s?}]",
    "T/nodes": "[NODE]",
    "T/nodeset-requests": "[REQUEST]",
    "T/providers": "[{name s, canonical_name s, images [{name s, canonical_name s, type s}], "
    "labels [{name s, canonical_name s}], flavors [{name s, canonical_name s}]}]",
    "T/images": "[{name s, canonical_name s, project_canonical_name s, branch s, type s, build_artifacts [ART]~}]",
    "T/autohold": "[HOLD]",
    "T/project/code/api/autohold": "[HOLD]",
}
"""Path, where `T` is the tenant's name, and the shape of its answer."""
